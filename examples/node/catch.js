// A simulator for Ludus in JavaScript: three paddles, each of which catches a ball that falls. Written from
// proto/README.md alone. Usage: node catch.js --run RUN [--server HOST:PORT] [--token TOKEN]
"use strict";
const crypto = require("node:crypto");
const path = require("node:path");
const { setTimeout: sleep } = require("node:timers/promises");
const { parseArgs } = require("node:util");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const { values: options } = parseArgs({
  options: {
    run: { type: "string" },
    server: { type: "string", default: "127.0.0.1:7070" },
    token: { type: "string", default: process.env.LUDUS_SIMULATOR_TOKEN || process.env.LUDUS_TOKEN || "" },
  },
});
if (!options.run) {
  console.error("usage: node catch.js --run RUN [--server HOST:PORT] [--token TOKEN]");
  process.exit(2);
}
const PROTO = path.join(__dirname, "../../proto/ludus/v1/simulation.proto");
const { SimulationService } = grpc.loadPackageDefinition(
  loader.loadSync(PROTO, { keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true }),
).ludus.v1;
const dial = (address) =>
  new SimulationService(address, grpc.credentials.createInsecure(), {
    "grpc.max_receive_message_length": 64 << 20,
    "grpc.keepalive_time_ms": 20_000,
    "grpc.keepalive_timeout_ms": 10_000,
  });
let said = "";
const say = (sentence) => { if (sentence !== said) console.log(said = sentence); }; // once, however often it recurs
const CLIENT = { protocol_version: 1, session_id: crypto.randomUUID(), client: "ludus-example-node/0.1.0" };
const floats = (values) => Buffer.concat(values.map((value) => { const b = Buffer.alloc(4); b.writeFloatLE(value); return b; }));
const ints = (values) => Buffer.concat(values.map((value) => { const b = Buffer.alloc(4); b.writeInt32LE(value); return b; }));
const readInts = (bytes) => Array.from({ length: bytes.length / 4 }, (_, index) => bytes.readInt32LE(4 * index));

// --- The game ---------------------------------------------------------------------------------------------------------
const WIDTH = 5, HEIGHT = 5, PADDLES = 3;
const BEHAVIOR = {
  name: "Catcher", // an agent sees [paddle, ball, height of the ball] and moves left, not at all, or right
  observations: [{ name: "board", shape: [3], dtype: "DTYPE_FLOAT32" }],
  actions: { discrete_branches: [3] },
};
const throwBall = () => [Math.floor(WIDTH / 2), crypto.randomInt(WIDTH), HEIGHT];
function move(board, choice) {
  board[0] = Math.min(Math.max(board[0] + choice - 1, 0), WIDTH - 1);
  board[2] -= 1;
  return board[2] > 0 ? null : board[0] === board[1] ? 1 : -1; // the reward, once the ball is down
}
const column = (agents, boards, rewards) => ({
  agent_ids: ints(agents),
  rewards: floats(rewards),
  observations: [{ dtype: "DTYPE_FLOAT32", shape: [agents.length, 3], data: floats(boards.flat()) }],
});

// --- One session: from Hello to Close. Resolves to Close; a broken stream counts as one that asks to rejoin. -----------
function play(service, ticket) {
  return new Promise((resolve) => {
    const metadata = new grpc.Metadata();
    metadata.set("ludus-ticket", ticket);
    const stream = service.Connect(metadata);
    const boards = new Map(), asked = new Map(); // agent -> board; step -> the agents that wait for its answer
    let stepId = 0, resetId = 0;

    function send(deciding, ended = { agents: [], boards: [], rewards: [] }) {
      asked.set(++stepId, deciding);
      const part = { behavior: BEHAVIOR.name };
      part.decisions = column(deciding, deciding.map((agent) => boards.get(agent)), deciding.map(() => 0));
      if (ended.agents.length > 0) {
        part.terminals = column(ended.agents, ended.boards, ended.rewards);
        part.terminals.truncated = Buffer.alloc(ended.agents.length); // 0: the task itself ended
      }
      stream.write({ step: { step_id: stepId, reset_id: resetId, behaviors: [part] } });
    }
    function begin() {
      asked.clear(); // every pending decision is void
      for (let agent = 0; agent < PADDLES; agent++) boards.set(agent, throwBall());
      send([...boards.keys()]);
    }
    function act({ step_id, behaviors }) {
      const waiting = asked.get(step_id) ?? [];
      for (const part of behaviors) {
        const agents = part.agent_ids.length > 0 ? readInts(part.agent_ids) : waiting;
        const choices = readInts(part.discrete), ended = { agents: [], boards: [], rewards: [] };
        agents.forEach((agent, index) => {
          const reward = move(boards.get(agent), choices[index]);
          if (reward === null) return;
          ended.agents.push(agent);
          ended.boards.push(boards.get(agent));
          ended.rewards.push(reward);
          boards.set(agent, throwBall()); // the next episode begins in the same message
        });
        asked.set(step_id, waiting.filter((agent) => !agents.includes(agent)));
        if (asked.get(step_id).length === 0) asked.delete(step_id);
        send(agents, ended);
      }
    }
    stream.on("data", (response) => {
      if (response.message === "welcome") begin();
      else if (response.message === "actions") act(response.actions);
      else if (response.message === "reset") { resetId = response.reset.reset_id; begin(); }
      else if (response.message === "wait") say(`waiting: ${response.wait.reason}`);
      else if (response.message === "close") { resolve(response.close); stream.end(); } // anything else is from the future
    });
    stream.on("error", (error) => resolve({ rejoin: true, code: "disconnected", reason: error.details }));
    stream.on("end", () => resolve({ rejoin: true, code: "disconnected", reason: "the stream ended" }));
    stream.write({ hello: { ticket, behaviors: [BEHAVIOR], ...CLIENT } });
  });
}

// --- Joining, again and again until the run ends ------------------------------------------------------------------------
const HOPELESS = new Set(["UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "UNIMPLEMENTED"]);
const HOLD_SECONDS = 30; // the gateway answers as soon as the run is ready, so this client need not ask every moment
const join = (gateway, relay) =>
  new Promise((resolve, reject) => {
    const metadata = new grpc.Metadata();
    if (options.token) metadata.set("authorization", `Bearer ${options.token}`);
    const deadline = new Date(Date.now() + (HOLD_SECONDS + 10) * 1000);
    const request = { run: options.run, relay, label: "catch in JavaScript", max_wait_seconds: HOLD_SECONDS, ...CLIENT };
    const call = gateway.Join(request, metadata, { deadline }, (error, answer) => (error ? reject(error) : resolve(answer)));
    call.on("metadata", (sent) => sent.get("ludus-waits-bin").forEach((reason) => say(`waiting: ${reason}`))); // it is held
  });
const reachable = (service) => new Promise((resolve) => service.waitForReady(Date.now() + 2000, (error) => resolve(!error)));

async function main() {
  const gateway = dial(options.server);
  let relay = false, failures = 0;
  const backOff = () => sleep(Math.min(250 * 2 ** failures++, 15_000) * (0.5 + Math.random() / 2));
  for (;;) {
    let answer;
    try {
      answer = await join(gateway, relay);
    } catch (error) {
      say(error.details);
      if (error.metadata.get("ludus-run-state")[0] === "SUCCEEDED") return 0;
      if (HOPELESS.has(grpc.status[error.code])) return 1;
      await backOff();
      continue;
    }
    if (answer.answer === "wait") {
      say(`waiting: ${answer.wait.reason}`);
      await sleep(answer.wait.retry_after_seconds * 1000);
      continue;
    }
    const { address, ticket } = answer.assignment;
    const service = answer.assignment.relay ? gateway : dial(address);
    if (!answer.assignment.relay && !(await reachable(service))) {
      relay = true;
      continue;
    }
    const close = await play(service, ticket);
    say(`${close.code}: ${close.reason}`);
    if (service !== gateway) service.close();
    if (!close.rejoin) return close.code === "run_finished" ? 0 : 1;
    await backOff();
  }
}
main().then((code) => process.exit(code));
