// A client that openapi-typescript makes of the description, in a story: queue a run, change it, end it.
import createClient from "openapi-fetch";
import type { paths } from "./api.js";

declare const process: { argv: string[] };

const client = createClient<paths>({ baseUrl: process.argv[2] });
const made = await client.POST("/v1/runs", {
  body: { config: { behaviors: { CartPole: {} } }, name: "typed" },
  params: { header: { "Idempotency-Key": "typed-1" } },
});
if (!made.data || !("id" in made.data)) throw new Error(JSON.stringify(made.error));
const path = { run: made.data.id };
const tagged = await client.PATCH("/v1/runs/{run}", { params: { path }, body: { tags: ["dataset:v2"] } });
const ended = await client.POST("/v1/runs/{run}:cancel", { params: { path } });
const refused = await client.POST("/v1/runs/{run}:pause", { params: { path } });
console.log(JSON.stringify([tagged.data?.tags, ended.data?.state, refused.error?.code]));
