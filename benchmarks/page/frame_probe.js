// What the page's frames cost while it is watched. It is evaluated in the page and leaves `globalThis.frameProbe`.
(() => {
  const probe = { gaps: [], long: [], isOver: false };
  let last = performance.now();
  const step = (now) => {
    if (probe.isOver) return;
    probe.gaps.push(now - last);
    last = now;
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
  // The browser reports every frame whose work took longer than 50 ms, with the scripts that ran in it.
  new PerformanceObserver((list) => {
    for (const { startTime, duration, scripts } of list.getEntries()) {
      const named = scripts.map(({ sourceURL, sourceFunctionName, invoker, duration: spent }) =>
        `${sourceURL.split("/").at(-1)} ${sourceFunctionName || invoker} ${Math.round(spent)} ms`);
      probe.long.push({ at: startTime, duration, scripts: named });
    }
  }).observe({ type: "long-animation-frame" });
  globalThis.frameProbe = probe;
})();
