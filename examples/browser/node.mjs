// The game without a page, as a build machine would run it: node node.mjs --run stars [--server ws://localhost:7071] [--token TOKEN]
// Node.js 22 has WebSockets; 20 has them by `node --experimental-websocket`.

import { parseArgs } from "node:util";
import { Ended, connect } from "../../clients/js/ludus.js";
import { BEHAVIORS, Sky } from "./game.js";

const { values: options } = parseArgs({
  options: {
    run: { type: "string", default: "stars" },
    server: { type: "string", default: "ws://localhost:7071" },
    token: { type: "string", default: process.env.LUDUS_SIMULATOR_TOKEN ?? "" },
    baskets: { type: "string", default: "16" },
  },
});

const sky = new Sky(Number(options.baskets));
try {
  const game = await connect({ ...options, label: "stars in Node.js", behaviors: BEHAVIORS });
  let step = sky.begin();
  for (;;) {
    const { reset, actions } = await game.step(step);
    step = reset ? sky.begin() : sky.tick(actions.Basket);
  }
} catch (ended) {
  if (!(ended instanceof Ended)) throw ended;
  console.log(`${ended.message}; mean of the last 200 stars: ${sky.mean()?.toFixed(2)}`);
  process.exit(ended.success ? 0 : 1);
}
