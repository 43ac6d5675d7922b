// A run from Node, with no Refold installed: Confluent's registry client over `refold serve gateway`, a plain Kafka
// client, and npm's eventsource.
//
//     node contract.mjs 127.0.0.1:9092 http://127.0.0.1:8321 r-1 hello '{"name": "Ada"}'
//
// It needs @confluentinc/schemaregistry, kafkajs, eventsource and @noble/hashes; `make contract` installs them.
import { AvroDeserializer, AvroSerializer, SchemaRegistryClient, SerdeType } from "@confluentinc/schemaregistry";
import { blake2b } from "@noble/hashes/blake2b";
import { EventSource } from "eventsource";
import { Kafka, logLevel } from "kafkajs";

const [, , broker, gateway, run, agent, input] = process.argv;
const PREFIX = "refold.";
const ENDS = ["refold.RunCompleted", "refold.RunFailed", "refold.RunCancelled"];
const COLUMNS = ["run_id", "agent", "status", "steps", "open", "seq", "requested_ms", "at_ms", "says"];
const kafka = new Kafka({ brokers: [broker], clientId: "contract", logLevel: logLevel.ERROR });
const registry = new SchemaRegistryClient({ baseURLs: [`${gateway}/registry`] });

async function start() {
  const topic = `${PREFIX}run-requested`;
  const avro = new AvroSerializer(registry, SerdeType.VALUE, { useLatestVersion: true, autoRegisterSchemas: false });
  const request = {
    run_id: run, agent, input, requester: "node", not_before_ms: 0, labels: { from: "node" }, token: "", sessions: [],
    deadline_ms: 0, budget: null,
  };
  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic, messages: [{ key: run, value: await avro.serialize(topic, request) }] });
  await producer.disconnect();
}

// A record of the run log counts if and only if it extends the head of its run.
async function fold() {
  const topic = `${PREFIX}run-log`;
  const avro = new AvroDeserializer(registry, SerdeType.VALUE, {});
  const consumer = kafka.consumer({ groupId: `contract-${run}` });
  let head = "", seq = 0;
  const events = [];
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
    consumer.run({
      eachMessage: async ({ message }) => {
        const [of, , name] = message.key.toString().split("/");
        if (of !== run || message.value === null) return;
        if (Buffer.from(blake2b(message.value.subarray(5), { dkLen: 16 })).toString("hex") !== name) return;
        const entry = await avro.deserialize(topic, message.value);
        if (Buffer.from(entry.prev).toString("hex") !== head || Number(entry.seq) !== seq + 1) return;
        head = name;
        seq += entry.events.length;
        events.push(...entry.events.map((event) => Object.entries(event)[0]));
        if (ENDS.includes(events.at(-1)[0])) resolve();
      },
    });
  });
  await consumer.disconnect();
  return events;
}

// Events come in order, without a gap, and a browser's own client stays away when the run is over. Each is named by its
// type, so it takes a listener for each.
async function follow(names, after) {
  const source = new EventSource(`${gateway}/api/runs/${run}/stream?after_seq=${after}`);
  const seen = [];
  await new Promise((resolve, reject) => {
    const take = ({ lastEventId, data }) => {
      if (Number(lastEventId) !== after + seen.length + 1) reject(new Error(`event ${lastEventId} after ${seen.length}`));
      seen.push(JSON.parse(data).type);
    };
    for (const name of new Set(names)) source.addEventListener(name, take);
    source.onerror = () => source.readyState === EventSource.CLOSED && resolve();
  });
  return seen;
}

// The topic run-view has the row of a run as the gateway lists it. A row may come twice, and an older one before it.
async function view(until) {
  const topic = `${PREFIX}run-view`;
  const avro = new AvroDeserializer(registry, SerdeType.VALUE, {});
  const consumer = kafka.consumer({ groupId: `contract-view-${run}` });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const row = await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
    consumer.run({
      eachMessage: async ({ message }) => {
        if (message.key.toString() !== run || message.value === null) return;
        const found = await avro.deserialize(topic, message.value);
        if (Number(found.seq) === until) resolve(found);
      },
    });
  });
  await consumer.disconnect();
  const answer = await fetch(`${gateway}/api/runs?label=from%3Dnode`);
  const listed = (await answer.json()).runs?.find((each) => each.run_id === run);
  if (!listed) throw new Error(`GET /api/runs (${answer.status}) does not list ${run}`);
  const differ = COLUMNS.filter((name) => String(row[name]) !== String(listed[name]));
  if (differ.length) throw new Error(`run-view and GET /api/runs differ in ${differ}`);
  return COLUMNS.length;
}

await start();
const events = await fold();
const [kind, end] = events.at(-1);
const names = events.map(([name]) => name.replace("refold.", ""));
for (const after of [0, 5]) {
  const seen = await follow(names, after);
  const behind = names.slice(after);
  if (behind.join() !== seen.join()) throw new Error(`the log has ${behind}, the stream ${seen}`);
}
const compared = await view(events.length);
console.log(JSON.stringify({ run, events: names, end: kind, result: end.result ?? null, compared }));
process.exit(0);
