// The charts of the overview: [data-series] is asked every [data-every] ms, [data-chart] names the part that is drawn.
// [data-optional] is shown once it has a line.
"use strict";

(() => {
  const board = document.querySelector("[data-series]");
  const EVERY = Number(board.dataset.every || 3000);
  const charts = new Map();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // The samples between two gaps: a line through one sample has no length, so it is drawn as a dot.
  const isolated = (u, line) => {
    const has = (at) => (u.data[line][at] ?? null) !== null;
    return u.data[line].flatMap((_, at) => has(at) && !has(at - 1) && !has(at + 1) ? [at] : []);
  };

  const draw = (box, key, at, lines) => {
    if (at.length < 2) return;  // one moment is no line
    const names = Object.keys(lines || {});
    const card = box.closest("[data-optional]");
    if (card) { card.hidden = !names.length; if (!names.length) return; }
    const known = charts.get(key);
    const data = [at, ...names.map((name) => lines[name])];
    if (known && known.names.join() === names.join()) { known.plot.setData(data); return; }
    if (known) known.plot.destroy();
    const soft = colour("--soft"), grid = { stroke: colour("--line"), width: 1 };
    const axis = { stroke: soft, grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const plot = new uPlot({
      width: box.clientWidth, height: box.clientHeight,
      legend: { show: false }, cursor: { show: false }, padding: [8, 18, 0, 0],
      scales: { x: { time: true, range: (u, low, high) => [Math.min(low, high - 120), high] }, y: { range: (u, low, high) => [0, Math.max(high * 1.15, 1)] } },
      axes: [{ ...axis, space: 70, size: 28, values: (u, ticks) => ticks.map((tick) => new Date(tick * 1000).toISOString().slice(...(at.at(-1) - at[0] > 172800 ? [5, 10] : [11, 16]))) },
             { ...axis, size: 44, space: 34 }],
      series: [{}, ...names.map((name, place) => ({ label: name, stroke: colour(`--chart-${place % 6 + 1}`), width: 2, points: { show: false, size: 5, fill: colour(`--chart-${place % 6 + 1}`), filter: isolated }, spanGaps: false }))],
    }, data, box);
    charts.set(key, { plot, names, box });
    const legend = document.querySelector(`[data-legend="${key}"]`);
    legend.replaceChildren(...names.map((name, place) => {
      const item = document.createElement("span");
      item.className = `key key-${place % 6 + 1}`;
      item.textContent = name;
      return item;
    }));
  };

  let last = null;
  const redraw = () => {
    if (!last) return;
    for (const box of board.querySelectorAll("[data-chart]")) draw(box, box.dataset.chart, last.at, last[box.dataset.chart]);
  };
  const renew = async () => {
    if (!document.hidden) {
      try {
        const answer = await fetch(board.dataset.series);
        if (answer.ok) { last = await answer.json(); redraw(); }
      } catch { /* the service is away for a moment; the numbers below say so */ }
    }
    setTimeout(renew, last && last.at.length > 1 ? EVERY : 1000);
  };
  const anew = () => { for (const each of charts.values()) each.plot.destroy(); charts.clear(); redraw(); };
  document.addEventListener("theme", anew);
  new ResizeObserver(() => {
    for (const each of charts.values()) each.plot.setSize({ width: each.box.clientWidth, height: each.box.clientHeight });
  }).observe(board);
  renew();
})();
