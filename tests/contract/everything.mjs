// Says all that a game can say, for test_javascript.py: node everything.mjs URL
import { connect, Ended } from "../../clients/js/ludus.js";

const game = await connect({
  run: "contract",
  server: process.argv[2],
  say: () => {},
  behaviors: {
    Moth: { observations: [{ shape: [1, 20, 20], pixels: true, name: "eye" }, [2]], continuous: 2, branches: [2, 3] },
    "Pair?team=1": { observations: [[1]], continuous: 1 },
  },
});
const eye = Uint8Array.from({ length: 400 }, (_, index) => index % 256);
const moths = [
  { id: 7, observations: [eye, [0.5, -1]], mask: [1, 0, 1, 1, 0] },
  { id: -3, observations: [eye, [0, 2]] },
];
const pairs = [
  { id: 1, observations: [[0.25]], group: 4, groupReward: 0.5, reward: 9 },
  { id: 2, observations: [[1]] },
];
const first = game.step({ Moth: { decide: moths } }); // two steps under way
const second = game.step({ "Pair?team=1": { decide: pairs } }, { Speed: 2.5, "Environment/Falls": [3, "sum"] });
const pair = (await second).actions["Pair?team=1"], moth = (await first).actions.Moth;
const facts = [game.seed, game.parameters.gravity, ...moth.get(7).continuous, ...moth.get(7).discrete, ...moth.get(-3).discrete];
facts.push(...pair.get(2).continuous);
const ended = [
  { id: 7, observations: [eye, [0, 0]], reward: 1, truncated: true, outcome: "win" },
  { id: -3, observations: [eye, [0, 0]], outcome: "loss" },
];
await game.step({ Moth: { end: ended } });
try {
  await game.step({ Moth: { decide: [{ id: 1, observations: [[1], [2]] }] } });
} catch (mistake) {
  facts.push(mistake.message);
}
console.log(JSON.stringify(facts));
try {
  await game.step({ Moth: { decide: [{ id: 8, observations: [eye, [0, 0]] }] } });
} catch (end) {
  process.exit(end instanceof Ended && end.success ? 0 : 1);
}
