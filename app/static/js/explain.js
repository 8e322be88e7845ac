// The worked example is updated on every key press once a prediction was made; the server uses the same formulas.

const form = document.querySelector("[data-explain]");
const answer = document.querySelector("[data-answer]");
const problem = document.querySelector("[data-problem]");

function read() {
  const ranks = [];
  for (const field of form.querySelectorAll("input[name^=n], input[name^=s]")) {
    const [, what, rank, batch] = field.name.match(/^([ns])(\d)(\d)$/) ?? [];
    if (!what) continue;
    const value = Number(field.value);
    const good = field.value.trim() !== "" && Number.isFinite(value) && (what === "s" || (Number.isInteger(value) && value >= 0));
    if (!good) throw new Error(`rank ${rank}, micro-batch ${batch}: ${field.value || "nothing"} is not a ${what === "n" ? "whole number of tokens" : "loss sum"}`);
    ranks[rank] ??= { tokens: 0, total: 0, batches: 0 };
    if (what === "n") { ranks[rank].tokens += value; ranks[rank].batches += 1; } else ranks[rank].total += value;
  }
  return ranks;
}

function text(value) {
  if (value === null || !Number.isFinite(value)) return "undefined";
  return Math.abs(value) >= 1e-3 || value === 0 ? String(Number(value.toPrecision(5))) : value.toExponential(3);
}

function put(root, name, value) {
  root.querySelector(`[data-out="${name}"]`).textContent = value;
}

function update() {
  let ranks;
  try {
    ranks = read();
    problem.textContent = "";
  } catch (error) {
    problem.textContent = error.message;
    return;
  }
  const n = ranks.reduce((sum, rank) => sum + rank.tokens, 0);
  if (n === 0) {
    problem.textContent = "global token count 0: the window has no supervised token on any rank";
    return;
  }
  const world = ranks.length;
  const total = ranks.reduce((sum, rank) => sum + rank.total, 0);
  const known = ranks.every((rank) => rank.tokens > 0);
  put(answer, "right", text(total / n));
  put(answer, "right-formula", `(${ranks.map((rank) => text(rank.total)).join(" + ")}) / ${n}`);
  put(answer, "wrong", known ? text(ranks.reduce((sum, rank) => sum + rank.total / rank.tokens, 0) / world) : "undefined");
  put(answer, "wrong-formula", `(${ranks.map((rank) => `${text(rank.total)}/${rank.tokens}`).join(" + ")}) / ${world}`);
  put(answer, "twice", text(total / n / Math.max(...ranks.map((rank) => rank.batches))));
  ranks.forEach((rank, index) => {
    const row = answer.querySelector(`[data-rank="${index}"]`);
    const wrong = rank.tokens ? 1 / (world * rank.tokens) : null;
    put(row, "tokens", rank.tokens.toLocaleString("en"));
    put(row, "total", text(rank.total));
    put(row, "wrong-weight", rank.tokens ? `1/${world * rank.tokens}` : "undefined");
    put(row, "right-weight", `1/${n}`);
    put(row, "ratio", wrong === null ? "undefined" : `${text(wrong * n)} times`);
    put(row, "scaled", text((world * rank.total) / n));
  });
}

if (answer) form.addEventListener("input", update);
