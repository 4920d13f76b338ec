//! The interface described in OpenAPI 3.1, made from one table; the bodies' schemas come from the
//! types that parse them.

use axum::Json;
use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::api::{
    GivenBudget, GivenConfiguration, GivenConfirmation, GivenFork, GivenNote, GivenSpec,
};
use crate::reply::Refusal;

/// One verb.
struct Operation {
    method: &'static str,
    path: &'static str,
    name: &'static str,
    summary: &'static str,
    body: Option<Body>,
    /// Name, schema, meaning.
    query: &'static [(&'static str, &'static str, &'static str)],
    /// Status of success and its media type; none without content.
    success: (u16, Option<&'static str>),
}

enum Body {
    Spec,
    Fork,
    Budget,
    Confirmation,
    Configuration,
    Note,
    Report,
}

const JSON: Option<&str> = Some("application/json");

const fn get(path: &'static str, name: &'static str, summary: &'static str) -> Operation {
    Operation {
        method: "get",
        path,
        name,
        summary,
        body: None,
        query: &[],
        success: (200, JSON),
    }
}

const fn post(path: &'static str, name: &'static str, summary: &'static str) -> Operation {
    Operation {
        method: "post",
        ..get(path, name, summary)
    }
}

const OPERATIONS: &[Operation] = &[
    Operation {
        query: &[
            (
                "state",
                "string",
                "list only experiments in this state: queued, running, paused, done, stopped or failed",
            ),
            (
                "limit",
                "integer",
                "largest number of entries; all by default",
            ),
        ],
        ..get("/experiments", "list", "List the experiments, newest first")
    },
    Operation {
        body: Some(Body::Spec),
        success: (201, JSON),
        ..post(
            "/experiments",
            "create",
            "Create an experiment from a specification and put it in the queue",
        )
    },
    Operation {
        body: Some(Body::Report),
        success: (201, JSON),
        ..post(
            "/experiments/import",
            "import",
            "Import a report written by `slackline tune --json` or by an export",
        )
    },
    get("/experiments/{id}", "show", "Show one experiment"),
    Operation {
        method: "delete",
        success: (204, None),
        ..get(
            "/experiments/{id}",
            "delete",
            "Delete an experiment that does not run, with all its evaluations",
        )
    },
    post(
        "/experiments/{id}/pause",
        "pause",
        "Pause an experiment after its current evaluation",
    ),
    post(
        "/experiments/{id}/resume",
        "resume",
        "Resume a paused, stopped, done or failed experiment. It waits in the queue, and then continues where it ended",
    ),
    post(
        "/experiments/{id}/stop",
        "stop",
        "Stop an experiment now. The evaluation that is being measured is killed",
    ),
    post(
        "/experiments/{id}/verify",
        "verify",
        "Stop searching, and verify the best configurations so far on fresh runs",
    ),
    post(
        "/experiments/{id}/promote",
        "promote",
        "Put an experiment's verified winner in force on the host",
    ),
    post(
        "/experiments/{id}/rollback",
        "rollback",
        "Undo an experiment's promotion: each file becomes as it was before the promotion, and each knob gets the control's \
         value. `promotion.left` lists what could not be restored. The next rollback tries only these",
    ),
    Operation {
        body: Some(Body::Confirmation),
        ..post(
            "/experiments/{id}/forget-rest",
            "forget-rest",
            "Forget the files and knobs that a rollback could not restore. They stay as they are, and the experiment can be \
             deleted. Without `confirm`, the request is refused, and the answer lists them",
        )
    },
    Operation {
        body: Some(Body::Fork),
        success: (201, JSON),
        ..post(
            "/experiments/{id}/fork",
            "fork",
            "Create an experiment that starts from the evaluations of this one",
        )
    },
    Operation {
        method: "put",
        body: Some(Body::Budget),
        ..get(
            "/experiments/{id}/budget",
            "budget",
            "Set the total number of evaluations, and optionally the time limit",
        )
    },
    Operation {
        method: "put",
        body: Some(Body::Note),
        ..get(
            "/experiments/{id}/note",
            "note",
            "Write a note on an experiment",
        )
    },
    get(
        "/experiments/{id}/queue",
        "queue",
        "List the enqueued configurations in the order in which they will be measured",
    ),
    Operation {
        body: Some(Body::Configuration),
        success: (201, JSON),
        ..post(
            "/experiments/{id}/queue",
            "enqueue",
            "Enqueue a configuration: it is measured before the search's next proposal",
        )
    },
    Operation {
        query: &[("format", "string", "json, csv or parquet; json by default")],
        success: (200, None),
        ..get(
            "/experiments/{id}/export",
            "export",
            "Get the whole report, or the evaluations as a table",
        )
    },
    get(
        "/experiments/{id}/points",
        "points",
        "Get the evaluations in columns, for plots",
    ),
    get(
        "/experiments/{id}/model",
        "model",
        "Get the importance and the trend of every parameter, from the model",
    ),
    Operation {
        query: &[
            ("x", "string", "the first parameter"),
            ("y", "string", "the second parameter"),
        ],
        ..get(
            "/experiments/{id}/model/pair",
            "model-pair",
            "Get the model's prediction over two parameters",
        )
    },
    get(
        "/experiments/{id}/rounds",
        "rounds",
        "Get the rounds of a continuous experiment in columns, with the evidence of its drift tests",
    ),
    get(
        "/experiments/{id}/verification",
        "verification",
        "Get the candidates of the verification and their runs",
    ),
    Operation {
        query: &[
            (
                "from",
                "integer",
                "number of the first evaluation; 1 by default",
            ),
            (
                "limit",
                "integer",
                "largest number of entries; all by default",
            ),
            (
                "outcome",
                "string",
                "list only evaluations with this outcome: running, completed, violated, crashed, aborted, killed or failed",
            ),
        ],
        ..get(
            "/experiments/{id}/evaluations",
            "evaluations",
            "List an experiment's evaluations, without their blocks",
        )
    },
    get(
        "/experiments/{id}/evaluations/{number}",
        "evaluation",
        "Show one evaluation with its blocks",
    ),
    post(
        "/experiments/{id}/evaluations/{number}/kill",
        "kill",
        "Kill one evaluation that is being measured. The experiment continues",
    ),
    Operation {
        method: "put",
        body: Some(Body::Note),
        ..get(
            "/experiments/{id}/evaluations/{number}/note",
            "note-evaluation",
            "Write a note on one evaluation",
        )
    },
    Operation {
        body: Some(Body::Spec),
        ..post(
            "/specs/check",
            "check",
            "Check a specification. If it is wrong, the answer names the error, its line and its key",
        )
    },
    get(
        "/host",
        "host",
        "Show what is changed on the host now, and what Slackline can do on this host",
    ),
    get(
        "/promotions",
        "promotions",
        "List what is in force on the host from experiments of this server, from `tune --promote` and from `apply`. With the \
         role write, the list also says who promoted an experiment's configuration",
    ),
    get(
        "/workers",
        "workers",
        "List the workers on other hosts, with the numbers of orders that they claimed and of results that they sent",
    ),
    get(
        "/status",
        "status",
        "Show the trouble of the server, if any, whether the queue is paused, and what is being measured",
    ),
    post(
        "/queue/pause",
        "pause-queue",
        "Pause the queue. The evaluation that is being measured runs to its end",
    ),
    post("/queue/resume", "resume-queue", "Resume the queue"),
    Operation {
        query: &[
            (
                "limit",
                "integer",
                "largest number of entries; 100 by default",
            ),
            (
                "experiment",
                "integer",
                "list only changes of this experiment",
            ),
        ],
        ..get(
            "/audit",
            "audit",
            "List who changed what, when and from where, newest first. Needs the role write. The header \
             Slackline-Damaged-Lines is the number of lines of the log that cannot be read",
        )
    },
    Operation {
        success: (200, Some("text/event-stream")),
        ..get(
            "/events",
            "events",
            "Receive server-sent events. An event `changed` comes at the start and after every change: JSON with `revision`, \
             `progress` and `trouble`. When the token or session ends, the last event is `ended`",
        )
    },
    get(
        "/openapi.json",
        "openapi",
        "Get this description in OpenAPI",
    ),
];

/// The path by which the interface is reached.
const BASE: &str = "/api/v1";

/// The pages, and the parameters that each takes.
const PAGES: &[(&str, &[&str])] = &[
    ("/", &[]),
    ("/new", &[]),
    ("/host", &[]),
    ("/promotions", &[]),
    ("/audit", &[]),
    ("/login", &["next", "wrong"]),
    ("/compare", &["id"]),
    (
        "/experiments/{id}",
        &["sort", "outcome", "search", "column", "page"],
    ),
    ("/experiments/{id}/evaluations/{number}", &[]),
    ("/experiments/{id}/verification", &[]),
    ("/metrics", &[]),
];

/// The parameters that a path takes, as far as it is known.
fn parameters(method: &Method, matched: &str) -> Option<Vec<&'static str>> {
    if let Some(operation) = find(method, matched) {
        return Some(operation.query.iter().map(|(name, ..)| *name).collect());
    }
    let page = PAGES.iter().find(|(path, _)| *path == matched);
    page.map(|(_, known)| known.to_vec())
}

fn find(method: &Method, matched: &str) -> Option<&'static Operation> {
    let path = matched.strip_prefix(BASE)?;
    let mut operations = OPERATIONS.iter();
    operations.find(|it| it.path == path && it.method.eq_ignore_ascii_case(method.as_str()))
}

/// The name of the operation at a path as the router has it.
pub(crate) fn operation(method: &Method, matched: &str) -> Option<&'static str> {
    find(method, matched).map(|operation| operation.name)
}

/// The names of the operations that change something.
#[cfg(test)]
pub(crate) fn changes() -> impl Iterator<Item = &'static str> {
    let changes = OPERATIONS.iter().filter(|it| it.method != "get");
    changes.map(|it| it.name)
}

/// Refuses a parameter that an operation does not have: a misspelt one must not be ignored.
pub(crate) async fn known_parameters(request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>();
    let known = matched.and_then(|path| parameters(request.method(), path.as_str()));
    if let (Some(known), Some(query)) = (known, request.uri().query()) {
        let mut given = crate::web::pairs(query).map(|(name, _)| name);
        if let Some(unknown) = given.find(|name| !known.contains(&name.as_str())) {
            let why = match known.is_empty() {
                true => format!("unknown query parameter {unknown:?}: this address takes none"),
                false => format!(
                    "unknown query parameter {unknown:?}; known: {}",
                    known.join(", ")
                ),
            };
            return Refusal::new(StatusCode::BAD_REQUEST, why).into_response();
        }
    }
    next.run(request).await
}

/// The whole description.
#[must_use]
pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
    });
    let mut schemas = settings.into_generator();
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = describe(operation, &mut schemas);
    }
    let mut definitions = schemas.take_definitions(true);
    definitions.insert(
        "Refusal".into(),
        json!({
            "type": "object",
            "description": "Problem details (RFC 9457).",
            "required": ["type", "title", "status", "detail"],
            "properties": {
                "type": { "type": "string", "description": "Always `about:blank`." },
                "title": { "type": "string", "description": "The status in words." },
                "status": { "type": "integer", "description": "The HTTP status." },
                "detail": { "type": "string", "description": "Why the request was refused." },
                "line": { "type": "integer", "description": "The line of the specification with the error." },
                "key": { "type": "string", "description": "The key of the specification with the error." },
            },
        }),
    );
    json!({
        "openapi": "3.1.0",
        "info": { "title": "slackline serve", "version": env!("CARGO_PKG_VERSION") },
        "servers": [{ "url": BASE }],
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn describe(operation: &Operation, schemas: &mut SchemaGenerator) -> Value {
    let in_path = operation
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> = in_path
        .map(|name| {
            json!({
                "name": name, "in": "path", "required": true, "example": 1,
                "schema": { "type": "integer", "minimum": 1, "maximum": i64::MAX },
            })
        })
        .collect();
    parameters.extend(operation.query.iter().map(|(name, kind, meaning)| {
        json!({ "name": name, "in": "query", "description": meaning, "schema": { "type": kind, "minimum": 0 } })
    }));
    let makes = matches!(operation.name, "create" | "import" | "fork" | "enqueue");
    if makes {
        parameters.push(json!({
            "name": "Idempotency-Key", "in": "header",
            "description": "A text that you choose. If the same request comes again with the same key within a day, it is not carried out again",
            "schema": { "type": "string", "minLength": 1, "maxLength": 255 },
        }));
    }
    let (status, kind) = operation.success;
    let mut success = json!({ "description": operation.summary });
    if let Some(kind) = kind {
        success["content"] = json!({ kind: { "schema": {} } });
    }
    if makes {
        success["headers"] = json!({ "Location": {
            "description": "The path of the new experiment, or of the queue.", "schema": { "type": "string" },
        } });
    }
    let refusal = json!({
        "description": "Refused. The body says why.",
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Refusal" } } },
    });
    let mut described = json!({
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": parameters,
        "responses": { status.to_string(): success, "4XX": refusal, "503": refusal },
    });
    let schema = operation.body.as_ref().map(|body| match body {
        Body::Spec => of::<GivenSpec>(schemas),
        Body::Fork => of::<GivenFork>(schemas),
        Body::Budget => of::<GivenBudget>(schemas),
        Body::Confirmation => of::<GivenConfirmation>(schemas),
        Body::Configuration => of::<GivenConfiguration>(schemas),
        Body::Note => of::<GivenNote>(schemas),
        Body::Report => json!({ "type": "object" }),
    });
    if let Some(schema) = schema {
        described["requestBody"] = json!({
            "required": !matches!(operation.body, Some(Body::Fork)),
            "content": { "application/json": { "schema": schema } },
        });
    }
    described
}

fn of<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    schemas.subschema_for::<T>().to_value()
}

pub(crate) async fn serve() -> Json<Value> {
    Json(document())
}
