// Tables that scroll can be reached by the keyboard, as code can.
document$.subscribe(() => requestAnimationFrame(() => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (table.scrollWidth <= table.clientWidth) continue;
    table.tabIndex = 0;
    table.setAttribute("role", "group");
    table.setAttribute("aria-label", "Table");
  }
}));
