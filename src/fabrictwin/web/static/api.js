// The HTTP interface. Every refusal is an error with the problems that the server names.
export class Refused extends Error {
  constructor(status, errors) {
    super(errors.map((one) => (one.key ? `${one.key}: ` : "") + one.message).join("; "));
    this.status = status;
    this.errors = errors;
  }
}

async function ask(method, path, body, type = "application/json") {
  const given = { method, headers: body === undefined ? {} : { "content-type": type } };
  if (body !== undefined) given.body = type === "application/json" ? JSON.stringify(body) : body;
  let answer;
  try { answer = await fetch(path, given); } catch { throw new Refused(0, [{ message: "the server does not answer" }]); }
  if (answer.ok) return answer.status === 204 ? null : answer.json();
  let errors;
  try { errors = (await answer.json()).errors; } catch { errors = [{ message: `the server answers ${answer.status}` }]; }
  throw new Refused(answer.status, errors);
}

export const get = (path) => ask("GET", path);
export const post = (path, body) => ask("POST", path, body);
export const remove = (path) => ask("DELETE", path);
export const upload = async (file) => ask("PUT", `/api/files/${encodeURIComponent(file.name)}`, await file.arrayBuffer(), "application/octet-stream");

/** Begin a job and follow it: `seen` is told each state. The answer is its last state. */
export async function follow(request, seen) {
  const begun = await post("/api/jobs", request);
  seen(begun);
  return watch(begun.id, seen);
}

export function watch(id, seen) {
  return new Promise((resolve, reject) => {
    const events = new EventSource(`/api/jobs/${id}/events`);
    events.onmessage = (event) => {
      const state = JSON.parse(event.data);
      seen(state);
      if (["done", "failed", "cancelled"].includes(state.state)) { events.close(); resolve(state); }
    };
    events.onerror = () => {
      if (events.readyState === EventSource.CLOSED) reject(new Refused(0, [{ message: "the server does not answer" }]));
    };
  });
}
