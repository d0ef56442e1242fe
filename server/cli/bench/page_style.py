"""The style of the report."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --back: #fbfbfa; --ink: #1d2327; --soft: #59636b; --line: #dfe3e6;
  --warn: #8a4b00;
  --c0: #0b6ea8; --c1: #b8530d; --c2: #1c7f4b; --c3: #8344a8; --c4: #b0243f; --c5: #5b6b00; --c6: #00767a;
  --c7: #7a5a3a;
  --wait: #c3cad0; --flow: #0b6ea8; --failed: #b0243f; }
@media (prefers-color-scheme: dark) { :root {
  --back: #14181b; --ink: #e6e9eb; --soft: #a2adb5; --line: #2c343a;
  --warn: #f0b26b;
  --c0: #5db4e8; --c1: #f2955a; --c2: #62c793; --c3: #c394e6; --c4: #f0798d; --c5: #b9cc4d; --c6: #4fc4c8;
  --c7: #cda982;  --wait: #4a555d; --flow: #5db4e8; --failed: #f0798d; } }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .75rem; }
.about { list-style: none; padding: 0; margin: 0; color: var(--soft); overflow-wrap: anywhere; }
.small { font-size: .85rem; color: var(--soft); } .warning { color: var(--warn); overflow-wrap: anywhere; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 600; }
figure { display: inline-block; vertical-align: top; width: min(100%, 37rem); margin: 0 0 1.5rem; }
figcaption { font-weight: 600; margin-bottom: .25rem; } svg { width: 100%; height: auto; display: block; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1rem; padding: 0; margin: 0; font-size: .85rem; }
.key { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem;
  vertical-align: -.08rem; background: var(--k); }
.grid { stroke: var(--line); } .axis { stroke: var(--soft); fill: none; }
.tick, .label { fill: var(--soft); font-size: 12px; } .middle { text-anchor: middle; } .end { text-anchor: end; }
.line { fill: none; stroke: var(--k); stroke-width: 1.8; stroke-linejoin: round; } .dot { fill: var(--k); }
.d1 { stroke-dasharray: 6 3; } .d2 { stroke-dasharray: 2 3; }
.wait { fill: var(--wait); --k: var(--wait); } .flow { fill: var(--flow); --k: var(--flow); }
.failed { fill: var(--failed); --k: var(--failed); }
.c0 { --k: var(--c0); } .c1 { --k: var(--c1); } .c2 { --k: var(--c2); } .c3 { --k: var(--c3); }
.c4 { --k: var(--c4); } .c5 { --k: var(--c5); } .c6 { --k: var(--c6); } .c7 { --k: var(--c7); }
@media print { .wide { overflow: visible; } }
""".strip()
