// Draws the game while it trains. The address says what to join: ?run=stars&server=ws://localhost:7071&baskets=16#token=TOKEN
// (a browser sends nothing behind # to any server, so no log has the token).

import { Ended, connect } from "../../clients/js/ludus.js";
import { BEHAVIORS, HEIGHT, Sky, WIDTH } from "./game.js";

const address = new URLSearchParams(location.search), secret = new URLSearchParams(location.hash.slice(1));
const sky = new Sky(Number(address.get("baskets") ?? 16));
const shares = []; // of stars that were caught, each of 50 stars more
const show = (id, text) => (document.getElementById(id).textContent = text);
const frame = () => new Promise(requestAnimationFrame);

async function play() {
  const game = await connect({
    run: address.get("run") ?? "stars",
    server: address.get("server") ?? "ws://localhost:7071",
    token: secret.get("token") ?? "",
    label: "stars in a page",
    behaviors: BEHAVIORS,
    say: (sentence) => show("status", sentence),
  });
  let step = sky.begin();
  for (;;) {
    if (document.getElementById("slow").checked) await frame();
    const { reset, actions } = await game.step(step); // the server decides the pace: nothing is missed between two frames
    show("status", reset ? "begins again" : "training");
    step = reset ? sky.begin() : sky.tick(actions.Basket);
    while (shares.length < Math.floor(sky.results.length / 50)) shares.push(((sky.mean(Math.min(200, sky.results.length)) ?? 0) + 1) / 2);
  }
}

function drawSky(canvas) {
  const context = canvas.getContext("2d"), across = Math.ceil(Math.sqrt(sky.lanes.length)), down = Math.ceil(sky.lanes.length / across);
  const width = canvas.width / across, height = canvas.height / down;
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.textAlign = "center";
  sky.lanes.forEach(({ id, basket, star, height: above, caught }) => {
    const left = (id % across) * width + 12, top = Math.floor(id / across) * height + 12;
    const column = (width - 24) / WIDTH, row = (height - 24) / (HEIGHT + 1);
    context.fillStyle = "#212845";
    context.fillRect(left, top, width - 24, height - 24);
    context.fillStyle = "#ffd166";
    context.font = `${1.6 * row}px sans-serif`;
    context.fillText("★", left + (star + 0.5) * column, top + (HEIGHT - above + 0.9) * row);
    context.fillStyle = caught === null ? "#8d99c8" : caught ? "#06d6a0" : "#ef476f"; // how its last star ended
    context.fillRect(left + (basket - 0.1) * column, top + (HEIGHT + 0.4) * row, 1.2 * column, 0.5 * row);
  });
}

function drawCurve(canvas) {
  const context = canvas.getContext("2d"), { width, height } = canvas;
  const y = (share) => height - 20 - share * (height - 40);
  context.clearRect(0, 0, width, height);
  context.font = "22px sans-serif";
  for (const share of [0, 0.5, 1]) {
    context.fillStyle = "#8d99c8";
    context.fillText(`${100 * share} %`, 12, y(share) + 8);
    context.fillRect(90, y(share), width - 110, 1);
  }
  context.strokeStyle = "#06d6a0";
  context.lineWidth = 4;
  context.beginPath();
  shares.forEach((share, index) => context.lineTo(90 + (index * (width - 110)) / Math.max(shares.length - 1, 50), y(share)));
  context.stroke();
}

function draw() {
  drawSky(document.getElementById("sky"));
  drawCurve(document.getElementById("curve"));
  const mean = sky.mean();
  show("caught", mean === null ? "–" : `${Math.round(50 * (mean + 1))} %`);
  show("down", sky.results.length);
  requestAnimationFrame(draw);
}

draw();
play().catch((error) => show("status", error instanceof Ended ? `the end: ${error.message}` : String(error)));
