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
                "only those that are queued, running, paused, done, stopped or failed",
            ),
            ("limit", "integer", "how many to return at most"),
        ],
        ..get("/experiments", "list", "Every experiment, newest first")
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
    get("/experiments/{id}", "show", "One experiment"),
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
        "Resume a paused, stopped, done or failed experiment: it waits in the queue, then goes on where it was",
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
        "Undo an experiment's promotion: files as they were before it, knobs with the control's values. What cannot be \
         restored is `promotion.left`; the next rollback tries it alone",
    ),
    Operation {
        body: Some(Body::Confirmation),
        ..post(
            "/experiments/{id}/forget-rest",
            "forget-rest",
            "Forget what a rollback could not restore: it stays as it is, and the experiment can be deleted. Without \
             `confirm` the refusal says what that is",
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
            "Change how much an experiment may measure",
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
        "The enqueued configurations, in their order",
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
        query: &[("format", "string", "json (default), csv or parquet")],
        success: (200, None),
        ..get(
            "/experiments/{id}/export",
            "export",
            "The whole report, or the evaluations as a table",
        )
    },
    get(
        "/experiments/{id}/points",
        "points",
        "The evaluations in columns, for plots",
    ),
    get(
        "/experiments/{id}/model",
        "model",
        "Importance and trend of every parameter",
    ),
    Operation {
        query: &[
            ("x", "string", "a parameter"),
            ("y", "string", "another one"),
        ],
        ..get(
            "/experiments/{id}/model/pair",
            "model-pair",
            "The model over two parameters",
        )
    },
    get(
        "/experiments/{id}/rounds",
        "rounds",
        "The rounds of a continuous experiment in columns, with the evidence of its drift tests",
    ),
    get(
        "/experiments/{id}/verification",
        "verification",
        "The candidates of the verification and their runs",
    ),
    Operation {
        query: &[
            ("from", "integer", "the first number, 1 by default"),
            ("limit", "integer", "how many to return at most"),
            (
                "outcome",
                "string",
                "only those that are running, completed, violated, crashed, aborted, killed or failed",
            ),
        ],
        ..get(
            "/experiments/{id}/evaluations",
            "evaluations",
            "Its evaluations, without their blocks",
        )
    },
    get(
        "/experiments/{id}/evaluations/{number}",
        "evaluation",
        "One evaluation with its blocks",
    ),
    post(
        "/experiments/{id}/evaluations/{number}/kill",
        "kill",
        "Kill one evaluation that is being measured; the experiment goes on",
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
            "What is wrong with a specification, and on which line",
        )
    },
    get(
        "/host",
        "host",
        "What is changed on the host now, and what it can do",
    ),
    get(
        "/promotions",
        "promotions",
        "What is in force on the host: by experiments of this server, with their configuration and, for tokens that may write, \
         who promoted it, and by `tune --promote` and `apply`",
    ),
    get(
        "/workers",
        "workers",
        "Workers on other hosts, with counts of claims and results",
    ),
    get(
        "/status",
        "status",
        "Whether the server is well, whether the queue is paused, and what is measured",
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
                "how many to return at most, 100 by default",
            ),
            ("experiment", "integer", "only of this one"),
        ],
        ..get(
            "/audit",
            "audit",
            "Who changed what, when and from where, newest first; for tokens that may write. The header \
             Slackline-Damaged-Lines says how many lines of the log cannot be read",
        )
    },
    Operation {
        success: (200, Some("text/event-stream")),
        ..get(
            "/events",
            "events",
            "Server-sent events named `changed`, one at the start and one after every change: JSON with `revision`, \
             `progress` and `trouble`. The stream ends with the token or session that opened it: an event `ended` is its last",
        )
    },
    get("/openapi.json", "openapi", "This description"),
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
                "type": { "type": "string" },
                "title": { "type": "string", "description": "The status in words." },
                "status": { "type": "integer" },
                "detail": { "type": "string", "description": "Why it was not done." },
                "line": { "type": "integer", "description": "The line of a specification." },
                "key": { "type": "string", "description": "The key on it." },
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
            "description": "A key of the sender's choice: the same request with the same key within a day is carried out once",
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
        "description": "Refused; the body says why.",
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
