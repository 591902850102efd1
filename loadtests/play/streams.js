// Charts under the table of Locust's "Streams" tab: TTFT and worst pause over time, by kind of user.
"use strict";

const COLOURS = ["#3b82f6", "#f59e0b", "#10b981", "#ec4899", "#8b5cf6", "#14b8a6"];
const WIDTH = 900, HEIGHT = 240, LEFT = 64, RIGHT = 16, TOP = 14, BOTTOM = 28;
const section = document.createElement("section");
section.style.cssText = "max-width: 1200px; margin: 24px auto; padding: 0 16px; font: 14px sans-serif";

function element(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A round number of at least `value`, for the top of an axis. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((top) => top >= value);
}

/** `lines`: by kind, points [seconds before now, seconds]; `limit`: drawn as a dashed line, or null. */
function chart(title, lines, limit) {
  const points = Object.values(lines).flat();
  const span = Math.max(30, ...points.map(([at]) => -at));
  const top = roundUp(Math.max(0.01, (limit || 0) * 1.2, ...points.map(([, value]) => value)));
  const x = (at) => WIDTH - RIGHT + (at / span) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  svg.style.cssText = "width: 100%; fill: currentColor; font-size: 12px";
  for (const share of [0, 0.5, 1]) {
    const at = y(share * top);
    svg.append(element("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at, stroke: "currentColor", opacity: 0.2 }));
    svg.append(element("text", { x: LEFT - 8, y: at + 4, "text-anchor": "end" }, `${share * top} s`));
  }
  svg.append(element("text", { x: LEFT, y: HEIGHT - 8 }, `${Math.round(span)} s ago`));
  svg.append(element("text", { x: WIDTH - RIGHT, y: HEIGHT - 8, "text-anchor": "end" }, "now"));
  if (limit) {
    const at = y(limit);
    svg.append(element("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at, stroke: "#ef4444", "stroke-dasharray": "6 4" }));
    svg.append(element("text", { x: WIDTH - RIGHT, y: at - 4, "text-anchor": "end", fill: "#ef4444" }, `SLO ${limit} s`));
  }
  Object.entries(lines).forEach(([, line], index) => {
    const colour = COLOURS[index % COLOURS.length];
    const path = line.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    svg.append(element("polyline", { points: path, fill: "none", stroke: colour, "stroke-width": 2 }));
    for (const [at, value] of line) svg.append(element("circle", { cx: x(at), cy: y(value), r: 2.5, fill: colour }));
  });
  return svg;
}

function legend(lines) {
  const row = document.createElement("p");
  Object.entries(lines).forEach(([kind, line], index) => {
    const entry = document.createElement("span");
    entry.style.cssText = `margin-right: 16px; border-left: 12px solid ${COLOURS[index % COLOURS.length]}; padding-left: 6px`;
    entry.textContent = `${kind}: ${line[line.length - 1][1].toFixed(3)} s`;
    row.append(entry);
  });
  return row;
}

function panel(title, lines, limit) {
  const heading = document.createElement("h3");
  heading.textContent = title;
  if (Object.keys(lines).length > 0) return [heading, legend(lines), chart(title, lines, limit)];
  const empty = document.createElement("p");
  empty.textContent = "No stream has ended yet. Start a test to see some.";
  return [heading, empty];
}

async function show() {
  const isOpen = new URLSearchParams(location.search).get("tab") === "streams";
  const main = document.querySelector("main");
  if (!isOpen || !main) return section.remove();
  if (section.parentNode !== main) main.append(section);
  section.style.color = getComputedStyle(document.body).color;
  const answer = await fetch("./streams.json");
  const { slo_pause_s: slo, ttft, pause } = await answer.json();
  section.replaceChildren(
    ...panel("Time to first token, median of each two seconds", ttft, null),
    ...panel("Longest streaming pause of each two seconds", pause, slo),
  );
}

function keepShowing() {
  show().catch((error) => section.replaceChildren(`No charts: Locust does not answer (${error.message}).`));
}

setInterval(keepShowing, 2000);
keepShowing();
