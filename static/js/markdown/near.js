/** Work that waits until its element comes near the screen. */

const NEAR = "600px";

const waiting = new WeakMap(); // what to call, by the element
let observer = null;

/** Calls once when the element comes near the screen. @param {Element} element @param {() => void} call */
export function whenNear(element, call) {
  observer ??= new IntersectionObserver(callNear, { rootMargin: NEAR });
  waiting.set(element, call);
  observer.observe(element);
}

function callNear(entries) {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    observer.unobserve(target);
    waiting.get(target)?.();
    waiting.delete(target);
  }
}
