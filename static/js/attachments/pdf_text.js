/** The text of a PDF file, by pdf.js, which is loaded with the first such file and works in a thread of its own. */

import { packageUrl } from "../page/packages.js";
import { words } from "../words/words.js";
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
    timer = setTimeout(() => reject(new Refused(words.attachments.takesLong)), TIMEOUT);
  });
  try {
    return await Promise.race([textOf(task, limit), tooLong]);
  } catch (error) {
    if (error instanceof Refused) throw error;
    throw new Refused(error?.name === "PasswordException" ? words.attachments.isProtected : words.attachments.isBrokenPdf);
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
    throw new Refused(words.attachments.noPdf);
  }
}

async function textOf(task, limit) {
  const file = await task.promise;
  if (file.numPages > MAX_PAGES) throw new Refused(words.attachments.hasPages(file.numPages, MAX_PAGES));
  const pages = [];
  let length = 0;
  for (let number = 1; number <= file.numPages; number += 1) {
    const { items } = await (await file.getPage(number)).getTextContent();
    const page = items.map(({ str = "", hasEOL }) => str + (hasEOL ? "\n" : "")).join("").trim();
    length += page.length;
    if (length > limit) throw new Refused(words.attachments.isLong(Math.floor(limit / 1024)));
    pages.push(page);
  }
  const text = pages.join("\n\n").trim();
  if (text === "") throw new Refused(words.attachments.hasNoText);
  return text;
}
