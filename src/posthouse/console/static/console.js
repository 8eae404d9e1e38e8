// Small helps for pages that work without them: the theme's switch, live numbers, the progress of jobs.

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function themeSwitch(button) {
  const say = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.hidden = false;
  say();
  button.addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("theme", next); } catch { /* kept for this page only */ }
    say();
  });
}

function span(seconds) {
  const us = seconds * 1e6;
  for (const [size, unit] of [[86400e6, "d"], [3600e6, "h"], [60e6, "min"], [1e6, "s"], [1e3, "ms"]]) {
    if (us >= size) return us >= 10 * size ? `${Math.round(us / size)} ${unit}` : `${(us / size).toFixed(1)} ${unit}`;
  }
  return "0 s";
}

function shown(value, as) {
  if (as === "duration") return span(value);
  if (typeof value === "number") return value.toLocaleString("en-US");
  return String(value).slice(0, 19).replace("T", " ");
}

function live(source) {
  const places = [...document.querySelectorAll("[data-live]")];
  const state = document.querySelector("[data-live-state]");
  const stream = new EventSource(source);
  stream.addEventListener("snapshot", (event) => {
    const now = JSON.parse(event.data);
    for (const place of places) {
      let value = now;
      for (const step of place.dataset.live.split(".")) value = value?.[step];
      if (value !== undefined && value !== null) {
        const text = shown(value, place.dataset.as);
        if (place.textContent !== text) place.textContent = text;
      }
    }
    if (state) state.textContent = ", live";
  });
  stream.addEventListener("error", () => { if (state) state.textContent = ", not live at the moment"; });
  addEventListener("pagehide", () => stream.close());
}

async function progress(box) {
  const bar = box.querySelector("progress");
  const done = box.querySelector("[data-done]");
  while (true) {
    await new Promise((resolve) => setTimeout(resolve, 500));
    const answer = await fetch(`/api/v1/jobs/${box.dataset.job}`).catch(() => null);
    if (!answer) continue;
    if (!answer.ok) return;
    const job = await answer.json();
    if (job.state !== "running") { location.reload(); return; }
    if (done) done.textContent = job.done.toLocaleString("en-US");
    if (bar && job.total) { bar.max = job.total; bar.value = job.done; }
  }
}

for (const button of document.querySelectorAll("[data-theme-switch]")) themeSwitch(button);
for (const place of document.querySelectorAll("[data-live-source]")) live(place.dataset.liveSource);
for (const box of document.querySelectorAll('[data-job][data-state="running"]')) progress(box);
