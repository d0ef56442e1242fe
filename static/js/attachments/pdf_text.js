/** The text of a PDF file, by pdf.js, which is loaded with the first such file and works in a thread of its own. */

import { packageUrl } from "../page/packages.js";
import { Refused } from "./refused.js";

const MAX_PAGES = 500;
const TIMEOUT = 60_000; // milliseconds, after which a file is given up

/**
 * @param {ArrayBuffer} data of the file, which is given away
 * @param {number} limit of characters
 * @returns {Promise<string>} an empty line between pages
 */
export async function pdfText(data, limit) {
  const pdfjs = await load();
  const task = pdfjs.getDocument({
    data: new Uint8Array(data),
    cMapUrl: packageUrl("pdfjs-dist", "cmaps/"),
    cMapPacked: true,
    disableFontFace: true,
    verbosity: 0,
  });
  let timer = null;
  const tooLong = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Refused("takes too long to read")), TIMEOUT);
  });
  try {
    return await Promise.race([textOf(task, limit), tooLong]);
  } catch (error) {
    if (error instanceof Refused) throw error;
    throw new Refused(error?.name === "PasswordException" ? "is protected by a password" : "is a PDF file that cannot be read");
  } finally {
    clearTimeout(timer);
    task.destroy().catch(() => {});
  }
}

async function load() {
  try {
    const pdfjs = await import(packageUrl("pdfjs-dist", "legacy/build/pdf.min.mjs"));
    pdfjs.GlobalWorkerOptions.workerSrc = packageUrl("pdfjs-dist", "legacy/build/pdf.worker.min.mjs");
    return pdfjs;
  } catch {
    throw new Refused("is a PDF file, which this server’s page cannot read");
  }
}

async function textOf(task, limit) {
  const file = await task.promise;
  if (file.numPages > MAX_PAGES) throw new Refused(`has ${file.numPages} pages; at most ${MAX_PAGES} are read`);
  const pages = [];
  let length = 0;
  for (let number = 1; number <= file.numPages; number += 1) {
    const { items } = await (await file.getPage(number)).getTextContent();
    const page = items.map(({ str = "", hasEOL }) => str + (hasEOL ? "\n" : "")).join("").trim();
    length += page.length;
    if (length > limit) throw new Refused(`has more than ${Math.floor(limit / 1024)} thousand characters of text`);
    pages.push(page);
  }
  const text = pages.join("\n\n").trim();
  if (text === "") throw new Refused("has no text; its pages may be pictures");
  return text;
}
