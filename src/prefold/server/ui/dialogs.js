// Dialogs: asks before something is done, and says what became of it.

import { byId, el, say } from "./dom.js";

/** Ask in a dialog, and do it. Fields are {name, label, value, type, hint}; `act` gets
 *  their values, and whatever it throws is shown and can be tried again. Resolves to what
 *  `act` returned, or null where the reader thought better of it. */
export function ask({ title, text, fields = [], verb, isDangerous = false, act }) {
  const dialog = byId("dialog");
  const inputs = fields.map((field) => makeField(field));
  const error = el("p", { class: "error", role: "alert" });
  const submit = el(
    "button",
    { type: "submit", class: isDangerous ? "danger" : "primary" },
    verb,
  );
  return new Promise((resolve) => {
    let result = null;
    const form = el(
      "form",
      {
        method: "dialog",
        autocomplete: "off",
        onsubmit: async (event) => {
          event.preventDefault();
          submit.disabled = true;
          say(error, "");
          try {
            result = await act(
              Object.fromEntries(inputs.map(({ name, read }) => [name, read()])),
            );
            dialog.close();
          } catch (failure) {
            say(error, failure.message);
          } finally {
            submit.disabled = false;
          }
        },
      },
      el("h2", { id: "dialog-title" }, title),
      el("p", {}, text),
      inputs.map(({ element }) => element),
      error,
      el(
        "p",
        { class: "buttons" },
        submit,
        el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      ),
    );
    dialog.replaceChildren(form);
    dialog.addEventListener("close", () => resolve(result), { once: true });
    dialog.showModal();
  });
}

function makeField({ name, label, type = "text", value = "", hint = null, isNeeded = false }) {
  const id = `field-${name}`;
  const input = el("input", {
    id,
    type,
    value: type === "checkbox" ? null : value,
    checked: type === "checkbox" && value,
    required: isNeeded,
    step: type === "number" ? "any" : null,
    min: type === "number" ? "0" : null,
    spellcheck: "false",
  });
  const read = () => {
    if (type === "checkbox") return input.checked;
    if (type === "number") return input.value === "" ? null : Number(input.value);
    return input.value;
  };
  const title = el("label", { for: id }, label);
  const note = hint ? el("p", { class: "note" }, hint) : null;
  const parts = type === "checkbox" ? [input, title, note] : [title, input, note];
  return { name, read, element: el("div", { class: `field ${type}` }, parts) };
}
