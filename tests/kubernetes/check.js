// Checks custom resources against their own schemas: reads a JSON list of them from standard input, and prints a JSON list of
// what is wrong, one sentence for each resource.
import { readFileSync } from "node:fs";

const MODULES = {
  "keda.sh/v1alpha1": "@kubernetes-models/keda/keda.sh/v1alpha1",
  "monitoring.coreos.com/v1": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1",
};
const problems = [];
for (const resource of JSON.parse(readFileSync(0, "utf8"))) {
  const { apiVersion, kind, ...content } = resource;
  const Model = MODULES[apiVersion] && (await import(`${MODULES[apiVersion]}/${kind}`))[kind];
  if (!Model) {
    problems.push(`${apiVersion}/${kind} has no schema here`);
    continue;
  }
  try {
    new Model(content).validate();
  } catch (error) {
    problems.push(`${kind} ${content.metadata?.name}: ${error.message}`);
  }
}
console.log(JSON.stringify(problems));
