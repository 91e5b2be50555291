// Plots: small drawings, made of shapes that the style sheet colours.

import { svg } from "./dom.js";

/** Return columns for moments of time: how much, and the filled share of it.
 *  Items are {at, amount, filled}; `at` counts slots from the right, 0 being now. */
export function columns(label, items, numSlots) {
  const width = 240;
  const height = 56;
  const step = width / numSlots;
  const most = Math.max(1, ...items.map((item) => item.amount));
  const bars = items.flatMap((item) => {
    const x = width - (item.at + 1) * step;
    const size = (value) => (height * value) / most;
    const bar = (value, name) =>
      svg("rect", {
        class: name,
        x: x + 0.4,
        y: height - size(value),
        width: step - 0.8,
        height: size(value),
      });
    return [bar(item.amount, "bar-all"), bar(item.filled, "bar-hit")];
  });
  return svg(
    "svg",
    {
      viewBox: `0 0 ${width} ${height + 1}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    bars,
    svg("line", { class: "axis", x1: 0, x2: width, y1: height + 0.5, y2: height + 0.5 }),
  );
}

/** Return one bar cut into parts; items are {name, amount}. */
export function stack(label, items) {
  const total = Math.max(
    1,
    items.reduce((sum, item) => sum + item.amount, 0),
  );
  let x = 0;
  const parts = items.map((item) => {
    const width = (1000 * item.amount) / total;
    const part = svg("rect", { class: `state-${item.name}`, x, y: 0, width, height: 14 });
    x += width;
    return part;
  });
  return svg(
    "svg",
    {
      viewBox: "0 0 1000 14",
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    parts,
  );
}

/** Return a curve through points {x, y, name, isHere} with y from 0 to 1 and x in powers
 *  of two. Names stand below, shares beside the points. */
export function curve(label, points) {
  const [width, height, left, right, top, bottom] = [420, 190, 40, 28, 16, 30];
  const logs = points.map((point) => Math.log2(point.x));
  const [low, high] = [Math.min(...logs), Math.max(...logs)];
  const reach = high > low ? high - low : 1;
  const most = Math.max(...points.map((point) => point.y), 0.01);
  const ceiling = Math.min(1, Math.ceil(10 * most + 0.5) / 10);
  // The first share needs room beside the numbers of the axis.
  const begin = left + 20;
  const atX = (x) => begin + ((Math.log2(x) - low) / reach) * (width - begin - right);
  const atY = (y) => height - bottom - (y / ceiling) * (height - top - bottom);
  const grid = [0, ceiling / 2, ceiling].flatMap((y) => [
    svg("line", { class: "grid", x1: left, x2: width - right, y1: atY(y), y2: atY(y) }),
    svg(
      "text",
      { class: "tick", x: left - 6, y: atY(y) + 3.5, "text-anchor": "end" },
      `${Math.round(100 * y)} %`,
    ),
  ]);
  const line = points.map((point) => `${atX(point.x)},${atY(point.y)}`).join(" ");
  const marks = points.flatMap((point) => [
    svg("circle", {
      class: point.isHere ? "dot here" : "dot",
      cx: atX(point.x),
      cy: atY(point.y),
      r: point.isHere ? 5 : 3.5,
    }),
    svg(
      "text",
      { class: "value", x: atX(point.x), y: atY(point.y) - 9, "text-anchor": "middle" },
      `${(100 * point.y).toFixed(1)}`,
    ),
    svg(
      "text",
      {
        class: point.isHere ? "tick here" : "tick",
        x: atX(point.x),
        y: height - 10,
        "text-anchor": "middle",
      },
      point.name,
    ),
  ]);
  return svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    grid,
    svg("polyline", { class: "curve", points: line }),
    marks,
  );
}
