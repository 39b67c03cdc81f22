// The client of Ludus for JavaScript: a game in a page, or in Node.js, becomes a simulator of a training run.
//
//     import { connect } from "./ludus.js";
//     const game = await connect({ run: "catch", behaviors: { Catcher: { observations: [[3]], branches: [3] } } });
//     const { actions, reset } = await game.step({ Catcher: { decide: [{ id: 0, observations: [[2, 4, 5]] }] } });
//
// No dependencies and no build step. It speaks `ludus.v1` over WebSockets: proto/README.md, sections 3 to 10 and 15.

/**
 * @typedef {object} Behavior What the agents of a policy see and do; at least one action.
 * @property {(number[] | {shape: number[], pixels?: boolean, name?: string})[]} observations The shape of each: [size], or with
 *   `pixels` [channels, height, width] of numbers from 0 to 255.
 * @property {number} [continuous] Number of continuous actions, each from -1 to 1.
 * @property {number[]} [branches] Number of choices of each discrete action.
 * @typedef {object} Agent
 * @property {number} id Chosen by the game. In `decide`, one without a running episode begins an episode.
 * @property {ArrayLike<number>[]} observations The numbers of each observation, flat.
 * @property {number} [reward] Since the agent's previous decision.
 * @property {ArrayLike<number>} [mask] In `decide`: 1 for each choice that is allowed, else 0; all branches in turn.
 * @property {number} [group] From 1: agents of one number are team mates, and share `groupReward`.
 * @property {number} [groupReward]
 * @property {boolean} [truncated] In `end`, true: a limit cut the episode; false: the task itself has ended.
 * @property {"win" | "draw" | "loss"} [outcome] In `end`.
 * @typedef {object} Turn
 * @property {boolean} reset True: nothing is answered. Begin new episodes for all agents, with the new `parameters`.
 * @property {Record<string, Map<number, {continuous: Float32Array, discrete: Int32Array}>>} actions By behavior and agent.
 * @property {Record<string, number>} parameters Environment parameters, for episodes that begin from now on.
 * @typedef {object} Options
 * @property {string} run A run's id or name.
 * @property {Record<string, Behavior>} behaviors By name, as in the run's configuration; "Striker?team=1" for a team.
 * @property {string} [server] Address of the gateway's WebSockets. [ws://localhost:7071]
 * @property {string} [token] One of the scope `simulate`, where the server demands it.
 * @property {string} [label] Says which simulator this is, for people.
 * @property {(sentence: string) => void} [say] Gets what people should know. [console.info]
 * @property {any} [WebSocket] A class like the browser's, for a Node.js that has none.
 */

const SERVICE = "/ludus.v1.SimulationService/", CLIENT = "ludus-js/0.1.0";
const HOLD_SECONDS = 30, REACH_SECONDS = 2, WELCOME_SECONDS = 60;
const HOPELESS = ["UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNIMPLEMENTED"];
const OUTCOMES = { win: 1, draw: 2, loss: 3 };
const AGGREGATIONS = { average: 1, most_recent: 2, sum: 3, histogram: 4 };

/** Why a simulator plays no more. `success`: the run has finished, or the game has left it. */
export class Ended extends Error {
  /** @param {string} code @param {string} reason @param {boolean} success */
  constructor(code, reason, success) {
    super(`${code}: ${reason}`);
    Object.assign(this, { name: "Ended", code, reason, success });
  }
}

/**
 * Join a run, and wait until it takes this game. The connection is made again whenever it breaks.
 * @param {Options} options
 * @returns {Promise<Simulator>} Rejects with `Ended` where the run does not take this game.
 */
export async function connect(options) {
  const simulator = new Simulator(options);
  await simulator.started;
  return simulator;
}

/** A game's place in a run. Made by `connect`. */
export class Simulator {
  /** The newest environment parameters. @type {Record<string, number>} */ parameters = {};
  /** The simulator's own seed. */ seed = 0;
  #options; #server; #sessionId; #said = "";
  #call = null; // the newest one
  #stream = null; // the call of a session that is welcomed
  #news = false; // whether all episodes are over, and the game has not been told yet
  #turns = new Set(); // promises that are not settled
  #steps = new Map(); // id -> step that is not answered wholly
  #waiting = new Map(); // behavior -> agent -> the step in which it asked
  #stepId = 0; #resetId = 0; #answeredAt = 0;
  #ended = null; // why, once it is over

  /** @param {Options} options */
  constructor(options) {
    this.#options = { WebSocket: globalThis.WebSocket, say: console.info, label: "", ...options };
    this.#server = (options.server ?? "ws://localhost:7071").replace(/\/+$/, "");
    if (!this.#options.WebSocket) throw new Error("no WebSocket: take Node.js 22, `node --experimental-websocket`, or the package ws");
    // `crypto.randomUUID` is not there in pages that came by http from another machine.
    this.#sessionId = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    this.started = new Promise((resolve, reject) => this.#turns.add({ resolve, reject }));
    this.#stay().catch((mistake) => this.#end(new Ended("client_error", mistake.stack ?? String(mistake), false)));
  }

  /**
   * Send one step. Several may be under way at once, for different agents.
   * @param {Record<string, {decide?: Agent[], end?: Agent[]}>} behaviors Agents that need an action, and agents whose
   *   episode has ended, by behavior. An id may be in both: `end` comes first.
   * @param {Record<string, number | [number, "average" | "most_recent" | "sum" | "histogram"]>} [stats] Metrics of the run.
   * @returns {Promise<Turn>} When all of `decide` are answered, or have ended. Rejects with `Ended`.
   */
  async step(behaviors, stats = {}) {
    if (this.#ended) throw this.#ended;
    if (this.#news) {
      this.#news = false;
      return { reset: true, actions: {}, parameters: this.parameters };
    }
    return new Promise((resolve, reject) => {
      const turn = { resolve, reject };
      if (!this.#stream) return this.#turns.add(turn); // its episodes went with the connection: the next welcome says so
      const parts = Object.entries(behaviors).map(([name, part]) => bytes(2, this.#encode(name, part)));
      const step = { id: ++this.#stepId, turn, asked: {}, left: 0, actions: {} };
      for (const [name, { decide = [], end = [] }] of Object.entries(behaviors)) {
        const waiting = this.#waiting.get(name) ?? new Map();
        this.#waiting.set(name, waiting);
        end.forEach(({ id }) => this.#settle(waiting, id));
        decide.forEach(({ id }) => waiting.set(id, step));
        step.asked[name] = decide.map(({ id }) => id);
        step.left += decide.length;
      }
      this.#steps.set(step.id, step);
      this.#turns.add(turn);
      const numbers = Object.entries(stats).map(([key, stat]) => {
        const [value, how] = Array.isArray(stat) ? stat : [stat, "average"];
        return bytes(3, join(string(1, key), float(2, value), number(3, AGGREGATIONS[how])));
      });
      const seconds = this.#answeredAt && (performance.now() - this.#answeredAt) / 1000;
      this.#stream.send(bytes(3, join(number(1, step.id), ...parts, ...numbers, number(4, this.#resetId), float(6, seconds))));
      this.#finish(step);
    });
  }

  /** Leave the run. */
  close() {
    this.#end(new Ended("left", "the game has left the run", true));
  }

  /** An agent does not wait any more; return the step in which it had asked. */
  #settle(waiting, agent) {
    const step = waiting.get(agent);
    waiting.delete(agent);
    if (step && --step.left === 0) queueMicrotask(() => this.#finish(step)); // when all of this message is read
    return step;
  }

  #finish(step) {
    if (step.left > 0 || !this.#steps.delete(step.id)) return;
    this.#turns.delete(step.turn);
    step.turn.resolve({ reset: false, actions: step.actions, parameters: this.parameters });
  }

  /** All episodes are over: at a welcome, and at a reset. */
  #begin(parameters) {
    this.parameters = parameters;
    this.#waiting.clear();
    this.#steps.clear();
    this.#answeredAt = 0;
    this.#news = this.#turns.size === 0;
    for (const turn of this.#turns) turn.resolve({ reset: true, actions: {}, parameters });
    this.#turns.clear();
  }

  #act(message) {
    const { 1: [id], 2: parts = [] } = read(message);
    const parameters = readNumbers(message, 3);
    if (Object.keys(parameters).length > 0) this.parameters = parameters;
    this.#answeredAt = performance.now();
    for (const part of parts.map(read)) {
      const name = decode(part[1]), waiting = this.#waiting.get(name) ?? new Map();
      const agents = part[2] ? [...column(Int32Array, part[2])] : this.#steps.get(id)?.asked[name] ?? [];
      const continuous = column(Float32Array, part[3]), discrete = column(Int32Array, part[4]);
      const row = (values, index, wide = values.length / agents.length) => values.slice(index * wide, (index + 1) * wide);
      agents.forEach((agent, index) => {
        if (waiting.get(agent)?.id !== id) return; // its episode has ended meanwhile
        const { actions } = this.#settle(waiting, agent);
        (actions[name] ??= new Map()).set(agent, { continuous: row(continuous, index), discrete: row(discrete, index) });
      });
    }
  }

  #end(ended) {
    this.#ended ??= ended;
    this.#call?.close();
    for (const turn of this.#turns) turn.reject(this.#ended);
    this.#turns.clear();
  }

  #say(sentence) {
    if (sentence !== this.#said) this.#options.say((this.#said = sentence)); // once, however often it recurs
  }

  // --- Messages -------------------------------------------------------------------------------------------------------

  /** Encode a BehaviorStep. Throws RangeError for what the server would refuse without saying which agent it is. */
  #encode(name, { decide = [], end = [] }) {
    const spec = this.#options.behaviors[name];
    if (!spec) throw new RangeError(`there is no behavior ${name}, only ${Object.keys(this.#options.behaviors)}`);
    /** Columns that decisions and endings have in common, and those of one of the two. */
    const columns = (agents, ...own) => {
      const put = (field, type, value) => bytes(field, packed(type, agents.flatMap(value)));
      const seen = spec.observations.map(described).map((each, index) => bytes(3, encodeTensor(name, each, index, agents)));
      const parts = [put(1, Int32Array, ({ id }) => id), put(2, Float32Array, ({ reward = 0 }) => reward), ...seen];
      if (agents.some(({ group }) => group)) {
        parts.push(put(5, Int32Array, ({ group = 0 }) => group), put(6, Float32Array, ({ groupReward = 0 }) => groupReward));
      }
      return join(...parts, ...own.map(([field, value]) => put(field, Uint8Array, value)));
    };
    const everything = (spec.branches ?? []).flatMap((size) => Array(size).fill(1));
    const masks = decide.some(({ mask }) => mask) ? [[4, ({ mask = everything }) => [...mask]]] : [];
    const outcomes = end.some(({ outcome }) => outcome) ? [[7, ({ outcome }) => OUTCOMES[outcome] ?? 0]] : [];
    const decisions = decide.length > 0 ? [bytes(2, columns(decide, ...masks))] : [];
    const terminals = end.length > 0 ? [bytes(3, columns(end, [4, ({ truncated }) => Number(truncated ?? false)], ...outcomes))] : [];
    return join(string(1, name), ...decisions, ...terminals);
  }

  #hello(ticket) {
    const behaviors = Object.entries(this.#options.behaviors).map(([name, { observations, continuous = 0, branches = [] }]) => {
      const seen = observations.map(described).map(({ shape, pixels, name: called = "" }) =>
        bytes(2, join(string(1, called), numbers(2, shape), number(3, pixels ? 2 : 1))));
      return bytes(4, join(string(1, name), ...seen, bytes(3, join(number(1, continuous), numbers(2, branches)))));
    });
    return bytes(1, join(string(1, ticket), number(2, 1), string(3, this.#sessionId), ...behaviors, string(5, CLIENT)));
  }

  // --- The connection: joins and plays, again and again, until the end ------------------------------------------------

  async #stay() {
    let relay = false, reached = false, misses = 0, failures = 0;
    const pause = () => sleep(Math.min(0.25 * 2 ** failures++, 15) * (0.5 + Math.random() / 2));
    while (!this.#ended) {
      const answer = await this.#join(relay);
      if (answer.status) {
        this.#say(`${answer.code}: ${answer.details}`);
        if (HOPELESS.includes(answer.status)) return this.#end(new Ended(answer.code, answer.details, answer.state === "SUCCEEDED"));
        await pause();
      } else if (answer.reason !== undefined) {
        this.#say(`waiting: ${answer.reason}`);
        await sleep(answer.seconds);
      } else {
        const session = await this.#play(answer);
        if (session.welcomed) failures = misses = 0;
        reached ||= session.welcomed && !answer.relay;
        relay = answer.relay ? session.welcomed : session.missed && (!reached || ++misses >= 3); // behind a firewall, perhaps
        if (this.#ended) return;
        if (!session.missed) this.#say(`${session.code}: ${session.reason}`);
        if (!session.rejoin) return this.#end(new Ended(session.code, session.reason, session.code === "run_finished"));
        if (!relay || session.welcomed) await pause();
      }
    }
  }

  /** Ask the gateway for an assignment, {url, ticket, relay}. Else {reason, seconds} of a wait, or the failed {status, ...}. */
  #join(relay) {
    const { run, token, label } = this.#options;
    const request = join(string(1, run), string(2, this.#sessionId), number(3, 1), number(4, Number(relay)),
      string(5, label), string(6, CLIENT), float(7, HOLD_SECONDS));
    return new Promise((resolve) => {
      const stream = this.#dial(this.#server, "Join", token ? { authorization: `Bearer ${token}` } : {}, HOLD_SECONDS + 10, {
        opened: () => stream.send(request),
        message: (data) => {
          const { 1: assignment, 2: wait } = read(data);
          if (wait) return resolve({ reason: decode(read(wait[0])[1]), seconds: read(wait[0])[2]?.[0] ?? 1 });
          const { 1: address, 2: ticket, 4: relayed, 5: tls } = read(assignment[0]);
          const url = relayed ? this.#server : `${tls ? "wss" : "ws"}://${decode(address)}`;
          resolve({ url, ticket: decode(ticket), relay: Boolean(relayed) });
        },
        closed: resolve,
      });
    });
  }

  /** Play one session; return {code, reason, rejoin} of its end, whether it was `welcomed`, and whether nobody was reached. */
  #play({ url, ticket, relay }) {
    return new Promise((resolve) => {
      let close = null, welcomed = false, missed = !relay;
      const stream = this.#dial(url, "Connect", { "ludus-ticket": ticket }, relay ? WELCOME_SECONDS : REACH_SECONDS, {
        opened: () => {
          missed = false;
          stream.limit(WELCOME_SECONDS);
          stream.send(this.#hello(ticket));
        },
        message: (data) => {
          const { 1: welcome, 2: actions, 3: reset, 4: wait, 5: last } = read(data); // others are of later versions
          if (welcome) {
            const { 3: seed = [0] } = read(welcome[0]);
            welcomed = true;
            stream.limit(Infinity);
            [this.#stream, this.seed, this.#stepId, this.#resetId] = [stream, seed[0], 0, 0];
            this.#begin(readNumbers(welcome[0], 4));
          } else if (actions) this.#act(actions[0]);
          else if (reset) {
            this.#resetId = read(reset[0])[1][0];
            this.#begin(readNumbers(reset[0], 2));
          } else if (wait) this.#say(`waiting: ${decode(read(wait[0])[1])}`);
          else if (last) {
            const { 1: code, 2: reason, 3: rejoin } = read(last[0]);
            close = { code: decode(code), reason: decode(reason), rejoin: Boolean(rejoin) };
            stream.close();
          }
        },
        closed: ({ code, details }) => {
          this.#stream = null;
          resolve({ ...(close ?? { code, reason: details, rejoin: true }), welcomed, missed });
        },
      });
    });
  }

  /** Make one call on a socket of its own, which is closed after so many seconds. `closed` gets a status in any case. */
  #dial(url, method, metadata, seconds, { opened, message, closed }) {
    let socket, timer, failure = { status: "UNAVAILABLE", details: `${url} cannot be reached, or broke off` };
    const over = () => {
      const { "ludus-reason": code = failure.status.toLowerCase(), "ludus-run-state": state } = failure.metadata ?? {};
      clearTimeout(timer);
      closed?.({ code, state, ...failure });
      closed = null;
    };
    const limit = (longest) => {
      clearTimeout(timer);
      if (longest < Infinity) timer = setTimeout(() => { stream.close(); over(); }, 1000 * longest);
    };
    const send = (data) => socket.readyState === 1 && socket.send(data);
    const stream = (this.#call = { limit, send, close: () => socket?.close(1000) });
    try {
      socket = new this.#options.WebSocket(url + SERVICE + method, "ludus.v1");
    } catch (mistake) { // a page that came by https may not use ws:, and an address may be none
      failure.details = String(mistake);
      queueMicrotask(over);
      return stream;
    }
    limit(seconds);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => { socket.send(JSON.stringify(metadata)); opened(); };
    socket.onmessage = ({ data }) => {
      if (typeof data !== "string") return message(new Uint8Array(data));
      const said = JSON.parse(data), waits = said.metadata?.["ludus-waits-bin"];
      if (said.status) failure = said;
      else if (waits) this.#say(`waiting: ${waits}`);
    };
    socket.onerror = () => {}; // `onclose` follows
    socket.onclose = over;
    return stream;
  }
}

// --- protobuf's wire format: a field is a tag, for bytes a length, then the content -----------------------------------

const decode = (data) => new TextDecoder().decode([data].flat()[0]);
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
const described = (seen) => (Array.isArray(seen) ? { shape: seen } : seen);

/** A number from 0 on: seven bits in each byte, the lowest first; the eighth says that another follows. */
const varint = (value) => (value < 128 ? [value] : [(value % 128) + 128, ...varint(Math.floor(value / 128))]);
const number = (field, value) => Uint8Array.from(value ? [...varint(field * 8), ...varint(value)] : []);
const numbers = (field, values) => (values.length ? bytes(field, Uint8Array.from(values.flatMap(varint))) : join());
const string = (field, value) => (value ? bytes(field, new TextEncoder().encode(value)) : join());
const float = (field, value) => (value ? join(Uint8Array.from(varint(field * 8 + 5)), packed(Float32Array, [value])) : join());
const bytes = (field, data) => join(Uint8Array.from([...varint(field * 8 + 2), ...varint(data.length)]), data);
const packed = (type, values) => new Uint8Array(type.from(values).buffer);
/** Return bytes as numbers, copied to where they are aligned. */
const column = (type, found) => new type(found ? found[0].slice().buffer : 0);

function join(...parts) {
  const joined = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  parts.reduce((at, part) => (joined.set(part, at), at + part.length), 0);
  return joined;
}

function encodeTensor(behavior, { shape, pixels }, index, agents) {
  const size = shape.reduce((product, length) => product * length, 1), type = pixels ? Uint8Array : Float32Array;
  const data = new type(agents.length * size);
  agents.forEach(({ id, observations }, row) => {
    const length = observations[index]?.length;
    if (length !== size) throw new RangeError(`observation ${index} of ${behavior} ${id} has ${length} numbers instead of ${size}`);
    data.set(observations[index], row * size);
  });
  return join(number(1, pixels ? 2 : 1), numbers(2, [agents.length, ...shape]), bytes(3, new Uint8Array(data.buffer)));
}

/** Return the values of each field by its number: numbers, or bytes. */
function read(data) {
  const found = {}, view = new DataView(data.buffer, data.byteOffset, data.length);
  let at = 0;
  const next = () => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      value += (data[at] % 128) * factor;
      if (data[at++] < 128) return value;
    }
  };
  while (at < data.length) {
    const tag = next(), kind = tag % 8;
    let value;
    if (kind === 0) value = next();
    else if (kind === 2) [value, at] = ((size) => [data.subarray(at, at + size), at + size])(next());
    else [value, at] = kind === 5 ? [view.getFloat32(at, true), at + 4] : [view.getFloat64(at, true), at + 8];
    (found[Math.floor(tag / 8)] ??= []).push(value);
  }
  return found;
}

/** Return a field that is a map of names to floats. */
function readNumbers(message, field) {
  const entries = (read(message)[field] ?? []).map(read);
  return Object.fromEntries(entries.map(({ 1: name, 2: value }) => [decode(name), value?.[0] ?? 0]));
}
