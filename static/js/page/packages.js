/** Where the packages of npm lie that the page loads when it needs them (`static/packages` fetches them). */

const VERSIONS = { katex: "0.19.1", "pdfjs-dist": "6.5.438" }; // those of `static/packages/package-lock.json`

/** The address of a file of a package. @param {keyof typeof VERSIONS} name @param {string} path in the package */
export function packageUrl(name, path) {
  return new URL(`static/packages/${name}@${VERSIONS[name]}/${path}`, document.baseURI).href;
}
