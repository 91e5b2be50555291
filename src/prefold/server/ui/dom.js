// DOM: elements made of tags, attributes and text. Text is text: nothing is parsed.

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = ["onclick", "onsubmit"];

/** Return an element. Attributes that are null, undefined or false are left out; those
 *  among HANDLERS are functions. Children are elements or texts. */
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
    if (HANDLERS.includes(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Let an element have these children. What it has of the same kind already is changed, not
 *  replaced: what has the focus keeps it, and what is open, scrolled or selected stays so,
 *  however often this is called. A `data-key` says what must not become something else.
 *  Where what has the focus goes away, the element itself takes it if it can. */
export function show(element, ...children) {
  const hadFocus = element.contains(document.activeElement);
  const fragment = document.createDocumentFragment();
  fragment.append(...children.flat().filter((child) => child !== null));
  settle(element, fragment);
  if (hadFocus && !element.contains(document.activeElement)) element.focus();
}

function settle(element, wanted) {
  let at = element.firstChild;
  for (const node of [...wanted.childNodes]) {
    let found = at;
    while (found && !isSameKind(found, node)) found = found.nextSibling;
    if (!found) {
      element.insertBefore(node, at);
      continue;
    }
    while (at !== found) at = removed(at);
    change(found, node);
    at = found.nextSibling;
  }
  while (at) at = removed(at);
}

function isSameKind(one, other) {
  return one.nodeName === other.nodeName && one.dataset?.key === other.dataset?.key;
}

/** Remove a node; return the one behind it. */
function removed(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

function change(node, wanted) {
  if (node.nodeType !== Node.ELEMENT_NODE) {
    if (node.data !== wanted.data) node.data = wanted.data;
    return;
  }
  for (const { name } of [...node.attributes]) {
    // Whether something is open is the reader's, and a style is no attribute to the policy.
    if (name !== "open" && name !== "style" && !wanted.hasAttribute(name)) {
      node.removeAttribute(name);
    }
  }
  for (const { name, value } of wanted.attributes) {
    if (name !== "style" && node.getAttribute(name) !== value) node.setAttribute(name, value);
  }
  if (node.style.cssText !== wanted.style.cssText) node.style.cssText = wanted.style.cssText;
  for (const name of HANDLERS) node[name] = wanted[name];
  settle(node, wanted);
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
