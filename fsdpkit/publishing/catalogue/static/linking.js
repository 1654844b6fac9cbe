// A filled form in the address's fragment, which no browser sends to a server. What comes from a
// link is a stranger's: a field takes a value only if a person could have chosen or typed it.
"use strict";

const LONGEST = 10_000;
const MOST = 40_000;

function fragmentOf(controls) {
  const said = new URLSearchParams();
  for (const control of controls) {
    const value = valueOf(control);
    if (value !== defaultOf(control)) said.append(control.name, value);
  }
  return String(said);
}

function valueOf(control) {
  return control.type === "checkbox" ? (control.checked ? "1" : "") : control.value;
}

function defaultOf(control) {
  if (control.type === "checkbox") return control.defaultChecked ? "1" : "";
  if (control.tagName !== "SELECT") return control.defaultValue;
  const chosen = [...control.options].find((option) => option.defaultSelected);
  return (chosen ?? control.options[0])?.value ?? "";
}

// Puts what a fragment says into the form; the names of what it said and the form did not take.
function fill(controls, fragment) {
  if (fragment.length > MOST) return ["all of it, for it is too long"];
  const byName = new Map(controls.map((control) => [control.name, control]));
  const seen = new Set();
  const refused = [];
  for (const [name, value] of new URLSearchParams(fragment)) {
    const control = byName.get(name);
    if (!control || seen.has(name) || !takes(control, value)) refused.push(shown(name));
    else put(control, value);
    seen.add(name);
  }
  return refused;
}

function takes(control, value) {
  if (control.type === "checkbox") return value === "1" || value === "";
  if (control.tagName === "SELECT") return [...control.options].some((o) => o.value === value);
  if (control.type === "number") return /^\d{0,6}$/.test(value);
  const unseen = control.tagName === "TEXTAREA" ? /[^\P{C}\n\t]|[\u2028\u2029]/u : /[\p{C}\u2028\u2029]/u;
  return value.length <= LONGEST && !unseen.test(value);
}

function put(control, value) {
  if (control.type === "checkbox") control.checked = value === "1";
  else control.value = value;
}

function shown(name) {
  return name.replace(/[\p{C}\p{Z}]/gu, "\ufffd").slice(0, 40) || "a name that is empty";
}
