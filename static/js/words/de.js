/** The German words of the page; `en.js` has the same names. */
export default {
  common: {
    copy: "Kopieren",
    copied: "Kopiert",
    notCopied: "Nicht kopiert",
    cancel: "Abbrechen",
    close: "Schließen",
    delete: "Löschen",
    done: "Fertig",
    save: "Speichern",
    undo: "Rückgängig",
  },
  answer: {},
  attachments: {},
  engine: {},
  markdown: {},
  parameters: {},
  tokens: {},
};
