// What pages that are only read do: how long ago a date is, for the pages themselves do not change
// with the day; when they were built; commands to copy.
"use strict";
{
  const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
  const units = [["year", 365.25], ["month", 30.44], ["day", 1]];
  for (const time of document.querySelectorAll("time[datetime]")) {
    const days = (Date.parse(time.dateTime) - Date.now()) / 86_400_000;
    if (!Number.isFinite(days)) continue;
    const [unit, length] = units.find(([, each]) => Math.abs(days) >= each) ?? ["day", 1];
    time.append(` (${words.format(Math.trunc(days / length), unit)})`);
    if (-days > Number(time.dataset.oldDays)) time.classList.add("old");
  }
  const today = new Date().toLocaleDateString("sv");  // 2027-06-30, by the reader's clock
  for (const one of document.querySelectorAll("[data-from]")) {
    one.hidden = today < one.dataset.from || (one.dataset.until && today > one.dataset.until);
    const list = one.closest("section");
    list.hidden = !list.querySelector("[data-from]:not([hidden])");
  }
  const built = Date.parse(document.lastModified);  // now, where the server does not say it
  if (Date.now() - built > 60_000) {
    document.getElementById("built").textContent =
      ` on ${new Date(built).toLocaleDateString("en-GB", { dateStyle: "long" })}`;
  }
  for (const block of document.querySelectorAll(".command")) {
    const text = block.querySelector("pre");
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Copy" });
    button.setAttribute("aria-label", `Copy: ${text.getAttribute("aria-label")}`);
    const said = document.createElement("span");
    said.className = "said quiet";
    said.setAttribute("role", "status");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text.textContent);
        said.textContent = "Copied.";
      } catch {
        getSelection().selectAllChildren(text);
        said.textContent = "Selected: copy it with Ctrl+C.";
      }
    });
    block.append(said, button);
  }
}
