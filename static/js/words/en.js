/** The English words of the page, by the part of the page that shows them. */
export default {
  common: {
    copy: "Copy",
    copied: "Copied",
    notCopied: "Not copied",
    cancel: "Cancel",
    close: "Close",
    delete: "Delete",
    done: "Done",
    save: "Save",
    undo: "Undo",
  },
  answer: {},
  attachments: {},
  engine: {},
  markdown: {},
  parameters: {},
  tokens: {},
};
