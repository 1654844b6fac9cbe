// Says behind each date how long ago that is: the pages themselves do not change with the day.
const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const units = [["year", 365.25], ["month", 30.44], ["day", 1]];
for (const time of document.querySelectorAll("time[datetime]")) {
  const days = (Date.parse(time.dateTime) - Date.now()) / 86_400_000;
  if (!Number.isFinite(days)) continue;
  const [unit, length] = units.find(([, length]) => Math.abs(days) >= length) ?? ["day", 1];
  time.append(` (${words.format(Math.trunc(days / length), unit)})`);
}
