/** Pictures that go with a message, as data URLs of bounded size, which the server reads and the page keeps. */

import { words } from "../words/words.js";
import { Refused } from "./refused.js";

const FORMATS = ["image/png", "image/jpeg", "image/webp", "image/gif"]; // that the server reads
const MAX_FILE_BYTES = 64 * 1024 * 1024;
const MAX_UNCHANGED_BYTES = 256 * 1024; // a larger file is made smaller: all pictures of a conversation go with each request
const MAX_BYTES = 384 * 1024;
const MAX_EDGE = 1568; // pixels
const ATTEMPTS = [[MAX_EDGE, 0.85], [MAX_EDGE, 0.7], [1024, 0.7], [768, 0.6]]; // the longer edge, and JPEG's quality
const MAX_URL_LENGTH = 3 * 1024 * 1024; // of pictures that other programs have kept
const URL_OF_PICTURE = /^data:image\/(?:png|jpeg|webp|gif);base64,[A-Za-z0-9+/]+={0,2}$/;

/** Whether a file is a picture; the text of an SVG file is more to a model than its drawing. @param {File} file */
export const isPicture = (file) => file.type.startsWith("image/") && file.type !== "image/svg+xml";

/** Whether a value is a data URL of a picture, and nothing that a browser would fetch from elsewhere. */
export function isPictureUrl(value) {
  return typeof value === "string" && value.length <= MAX_URL_LENGTH && URL_OF_PICTURE.test(value);
}

/**
 * The picture of a file: its bytes where they are few and in a format that the server reads, else a JPEG of it.
 *
 * @param {File} file
 * @returns {Promise<string>} a data URL
 * @throws {Refused} where the browser cannot read it
 */
export async function readPicture(file) {
  if (file.size > MAX_FILE_BYTES) throw new Refused(words.attachments.isLarger(`${MAX_FILE_BYTES >> 20} MiB`));
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Refused(words.attachments.isBrokenPicture);
  });
  try {
    const isSmall = file.size <= MAX_UNCHANGED_BYTES && Math.max(bitmap.width, bitmap.height) <= MAX_EDGE;
    const url = await urlOf(isSmall && FORMATS.includes(file.type) ? file : await asJpeg(bitmap));
    if (!isPictureUrl(url)) throw new Refused(words.attachments.isBrokenPicture);
    return url;
  } finally {
    bitmap.close();
  }
}

/** A JPEG file of bounded size, over white where the picture is transparent. */
async function asJpeg(bitmap) {
  for (const [edge, quality] of ATTEMPTS) {
    const scale = Math.min(1, edge / Math.max(bitmap.width, bitmap.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(scale * bitmap.width));
    canvas.height = Math.max(1, Math.round(scale * bitmap.height));
    const context = canvas.getContext("2d");
    context.fillStyle = "white";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.imageSmoothingQuality = "high";
    context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", quality));
    if (blob !== null && blob.size <= MAX_BYTES) return blob;
  }
  throw new Refused(words.attachments.isBrokenPicture);
}

function urlOf(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Refused(words.attachments.isBroken));
    reader.readAsDataURL(blob);
  });
}
