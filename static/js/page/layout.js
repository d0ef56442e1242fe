/** What stands beside the conversation: the list at the left, and at the right the settings or the inspector. On a phone all are sheets. */

import { byId } from "./dom.js";

const KEY = "eagre.sidebar";
const PANELS = ["settings", "inspector"];

export class Layout {
  #inspector;
  #storage;
  #narrow = matchMedia("(max-width: 46rem)");
  #hasSidebar = true;

  /** @param {() => Storage} storage @param {{isOpen: boolean}} inspector */
  constructor(storage, inspector) {
    this.#storage = storage;
    this.#inspector = inspector;
    try {
      this.#hasSidebar = storage().getItem(KEY) !== "hidden";
    } catch {
      // Without a storage, the list is shown.
    }
    byId("sidebar-toggle").addEventListener("click", () => this.showSidebar(true));
    byId("sidebar-close").addEventListener("click", () => this.showSidebar(false));
    byId("settings-close").addEventListener("click", () => this.open(null));
    byId("shade").addEventListener("click", () => this.closeSheets());
    for (const name of PANELS) byId(`${name}-toggle`).addEventListener("click", () => this.open(byId(name).hidden ? name : null));
    this.#narrow.addEventListener("change", () => this.#showSidebar(this.hasSidebar && !this.#narrow.matches));
    this.#showSidebar(this.#hasSidebar && !this.#narrow.matches);
    // Where the keyboard lies over the page and does not shrink it, the page shrinks itself.
    globalThis.visualViewport?.addEventListener("resize", () => {
      const { height, scale } = globalThis.visualViewport;
      if (scale === 1) document.documentElement.style.setProperty("--height", `${height}px`);
    });
  }

  get hasSidebar() {
    return !byId("sidebar").hidden;
  }

  showSidebar(isShown) {
    this.#showSidebar(isShown);
    (isShown ? byId("sidebar-close") : byId("sidebar-toggle")).focus();
    if (this.#narrow.matches) return;
    try {
      this.#storage().setItem(KEY, isShown ? "shown" : "hidden");
    } catch {
      // It lasts as long as the page.
    }
  }

  /** Opens one of the panels at the right, or none. @param {"settings"|"inspector"|null} name */
  open(name) {
    const had = PANELS.find((panel) => byId(panel).contains(document.activeElement));
    for (const panel of PANELS) {
      const isOpen = panel === name;
      byId(`${panel}-toggle`).setAttribute("aria-expanded", String(isOpen));
      if (panel === "inspector") this.#inspector.isOpen = isOpen;
      else byId(panel).hidden = !isOpen;
      document.body.classList.toggle(`${panel}-open`, isOpen);
    }
    if (name === null && had !== undefined) byId(`${had}-toggle`).focus();
    if (this.#narrow.matches && name !== null) this.#showSidebar(false);
    this.#showShade();
  }

  /** A view has no use for a panel. */
  showView(view) {
    byId("inspector-toggle").hidden = view !== "chat";
    byId("settings-toggle").hidden = view === "engine";
    if (view === "engine" || (view === "tokens" && !byId("inspector").hidden)) this.open(null);
  }

  /** Closes what lies over the conversation on a phone. @returns {boolean} whether there was anything */
  closeSheets() {
    if (!this.#narrow.matches) return false;
    const isOver = this.hasSidebar || PANELS.some((name) => !byId(name).hidden);
    this.#showSidebar(false);
    this.open(null);
    return isOver;
  }

  #showSidebar(isShown) {
    byId("sidebar").hidden = !isShown;
    byId("sidebar-toggle").setAttribute("aria-expanded", String(isShown));
    document.body.classList.toggle("with-sidebar", isShown);
    this.#showShade();
  }

  #showShade() {
    byId("shade").hidden = !this.#narrow.matches || !(this.hasSidebar || PANELS.some((name) => !byId(name).hidden));
  }
}
