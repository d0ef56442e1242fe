/** From a file to its text. */

import { words } from "../words/words.js";
import { pdfText } from "./pdf_text.js";
import { Refused } from "./refused.js";

export const MAX_TEXT_BYTES = 512 * 1024;
const MAX_PDF_BYTES = 32 * 1024 * 1024;
const SIGNATURE = "%PDF-"; // somewhere in the first kilobyte
const OFFICE = /\.(docx?|xlsx?|pptx?|odt|ods|odp|pages|numbers|epub|rtf)$/i;
const ARCHIVE = /\.(zip|gz|tgz|xz|bz2|7z|rar|tar|zst)$/i;

/**
 * @param {File} file
 * @returns {Promise<string>}
 * @throws {Refused} where it has no text, or too much
 */
export async function readFile(file) {
  if (/^(audio|video)\//.test(file.type) && !/\.(m?ts|cts)$/i.test(file.name)) throw new Refused(words.attachments.isRecording);
  if (await isPdf(file)) {
    if (file.size > MAX_PDF_BYTES) throw new Refused(words.attachments.isLarger(`${MAX_PDF_BYTES >> 20} MiB`));
    return pdfText(await bytesOf(file), MAX_TEXT_BYTES);
  }
  if (OFFICE.test(file.name)) throw new Refused(words.attachments.isOffice);
  if (ARCHIVE.test(file.name)) throw new Refused(words.attachments.isArchive);
  if (file.size > MAX_TEXT_BYTES) throw new Refused(words.attachments.isLarger(`${MAX_TEXT_BYTES >> 10} KiB`));
  return decoded(await bytesOf(file));
}

async function isPdf(file) {
  const head = await bytesOf(file.slice(0, 1024));
  return new TextDecoder("latin1").decode(head).includes(SIGNATURE);
}

async function bytesOf(part) {
  try {
    return await part.arrayBuffer();
  } catch {
    throw new Refused(words.attachments.isFolder);
  }
}

/** UTF-8, or UTF-16 with its mark. */
function decoded(buffer) {
  const [first, second] = new Uint8Array(buffer.slice(0, 2));
  const encoding = first === 0xff && second === 0xfe ? "utf-16le" : first === 0xfe && second === 0xff ? "utf-16be" : "utf-8";
  try {
    const text = new TextDecoder(encoding, { fatal: true }).decode(buffer);
    if (!text.includes("\0")) return text;
  } catch {
    // said below
  }
  throw new Refused(words.attachments.isNotText);
}
