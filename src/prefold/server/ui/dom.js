// DOM: elements made of tags, attributes and text. Text is text: nothing is parsed.

const SVG = "http://www.w3.org/2000/svg";

/** Return an element. Attributes that are null, undefined or false are left out; those
 *  that begin with "on" are listeners. Children are elements or texts. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Return an element of a drawing. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Put children in place of what an element has, unless it looks the same already. */
export function show(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null));
}

/** Set a text only where it changes, so that nothing is read out twice. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Return a table: columns are [title, isNumber], rows are lists of cells. */
export function table(caption, columns, rows) {
  return el(
    "table",
    {},
    el("caption", { class: "sr" }, caption),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        columns.map(([title, isNumber]) =>
          el("th", { scope: "col", class: isNumber ? "number" : null }, title),
        ),
      ),
    ),
    el(
      "tbody",
      {},
      rows.map((cells) =>
        el(
          "tr",
          {},
          cells.map((cell, index) =>
            el(
              "td",
              {
                class: columns[index][1] ? "number" : null,
                "data-title": columns[index][0],
              },
              cell,
            ),
          ),
        ),
      ),
    ),
  );
}
