"use strict";
// Tokens a second (line) and the share of draft tokens that were accepted (dashed) of one answer.

const PLOT_WIDTH = 160, PLOT_HEIGHT = 30, MOST_SAMPLES = 120;

// samples: [[milliseconds, tokens, accepted, rejected], ...] since the request; counts are totals.
function addSample(samples, sample) {
  const last = samples.at(-1);
  if (last && sample[0] - last[0] < 100) return;
  samples.push(sample);
  if (samples.length > MOST_SAMPLES) for (let at = samples.length - 2; at > 0; at -= 2) samples.splice(at, 1);
}

function drawn(kind, parent, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  parent.append(made);
  return made;
}

function drawPlot(svg, samples) {
  svg.replaceChildren();
  const steps = samples.slice(1).map(([ms, tokens, accepted, rejected], number) => {
    const before = samples[number];
    const drafted = accepted - before[2] + rejected - before[3];
    return {
      ms,
      speed: (tokens - before[1]) / (ms - before[0]) * 1000,
      share: drafted ? (accepted - before[2]) / drafted : 0,
    };
  });
  if (steps.length < 2) return;
  const first = steps[0].ms, length = steps.at(-1).ms - first;
  const fastest = Math.max(...steps.map((step) => step.speed), 1);
  const line = (height) => steps.map((step) => {
    const x = (step.ms - first) / length * PLOT_WIDTH, y = PLOT_HEIGHT - 1 - height(step) * (PLOT_HEIGHT - 2);
    return `${x.toFixed(1)},${y.toFixed(1)}`;
  }).join(" ");
  drawn("polyline", svg, { class: "share", points: line((step) => step.share) });
  drawn("polyline", svg, { class: "speed", points: line((step) => step.speed / fastest) });
  drawn("text", svg, { class: "speed-key", x: PLOT_WIDTH + 5, y: 12 }).textContent = `${fastest.toFixed(0)} a second at most`;
  drawn("text", svg, { class: "share-key", x: PLOT_WIDTH + 5, y: 26 }).textContent = "- - drafts accepted";
  const words = `Tokens a second, at most ${fastest.toFixed(0)}; dashed: the share of draft tokens that were accepted.`;
  svg.setAttribute("aria-label", words);
}
