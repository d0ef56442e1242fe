/** Tabs after the ARIA pattern: one tab stop, arrows to move, the panel follows. */
export class Tabs {
  #tabs;
  #onSelect;

  /** @param {HTMLElement} list holds the tabs @param {(mode: string) => void} onSelect */
  constructor(list, onSelect) {
    this.#tabs = [...list.querySelectorAll("[role=tab]")];
    this.#onSelect = onSelect;
    for (const tab of this.#tabs) tab.addEventListener("click", () => this.select(tab.dataset.mode));
    list.addEventListener("keydown", (event) => this.#onKey(event));
  }

  select(mode) {
    for (const tab of this.#tabs) {
      const isSelected = tab.dataset.mode === mode;
      tab.setAttribute("aria-selected", String(isSelected));
      tab.tabIndex = isSelected ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !isSelected;
    }
    this.#onSelect(mode);
  }

  #onKey(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const current = this.#tabs.indexOf(document.activeElement);
    const next = this.#tabs.at((current + step) % this.#tabs.length);
    next.focus();
    this.select(next.dataset.mode);
  }
}
