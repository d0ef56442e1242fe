/** Pictures whose lines are as sharp as the screen. */

/**
 * An empty picture of this size in the pixels of the page.
 *
 * @param {CanvasRenderingContext2D} context
 */
export function clear(context, width, height) {
  const { canvas } = context;
  const scale = globalThis.devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
  canvas.style.height = `${height}px`;
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
}
