"""What the page has kept in the browser: a test that loads it anew waits for that, because writing takes a while."""

from __future__ import annotations

from tests.static.support.devtools import Page

HOLDS = """
new Promise((resolve, reject) => {
  const opening = indexedDB.open("eagre.playground");
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const reading = opening.result.transaction(["conversations", "nodes"]);
    const [all, parts] = ["conversations", "nodes"].map((name) => reading.objectStore(name).getAll());
    reading.oncomplete = () => {
      opening.result.close();
      const [conversations, nodes] = [all.result, parts.result];
      resolve(CONDITION);
    };
  };
})
"""


async def until_kept(page: Page, condition: str) -> None:
    """Waits until a JavaScript condition holds for the lists `conversations` and `nodes` of what is kept."""
    await page.wait_for("document.querySelector('#conversations .name') !== null")  # the database is there
    await page.wait_for(HOLDS.replace("CONDITION", condition))
