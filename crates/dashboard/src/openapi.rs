//! The interface described in OpenAPI 3.1, made from one table. The schemas come from the types
//! that parse the bodies and that become the answers.

mod operations;

use axum::Json;
use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};
use tuner::report::Report;

use crate::api::{
    GivenBudget, GivenConfiguration, GivenConfirmation, GivenFork, GivenNote, GivenSpec,
};
use crate::reply::{Problem, Refusal};
use crate::stream::Changed;
use operations::{Answer, Body, OPERATIONS, Operation, of};

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
    let (paths, mut schemas) = described();
    let mut definitions = schemas.bodies.take_definitions(true);
    definitions.extend(schemas.answers.take_definitions(true));
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

/// The operations by path and method, and the schemas of their types.
fn described() -> (Map<String, Value>, Schemas) {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
    });
    let mut schemas = Schemas {
        bodies: settings.clone().into_generator(),
        answers: settings.for_serialize().into_generator(),
    };
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = describe(operation, &mut schemas);
    }
    (paths, schemas)
}

/// The schemas of the types: a type that is read may leave out fields that are always written.
struct Schemas {
    bodies: SchemaGenerator,
    answers: SchemaGenerator,
}

fn describe(operation: &Operation, schemas: &mut Schemas) -> Value {
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
    let mut success = json!({ "description": operation.summary });
    if let Some(content) = content(&operation.answer, &mut schemas.answers) {
        success["content"] = content;
    }
    if makes {
        success["headers"] = json!({ "Location": {
            "description": "The path of the new experiment, or of the queue.", "schema": { "type": "string" },
        } });
    }
    let refusal = json!({
        "description": "Refused. The body says why.",
        "content": { "application/problem+json": { "schema": of::<Problem<'_>>(&mut schemas.answers) } },
    });
    let mut described = json!({
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": parameters,
        "responses": { operation.status.to_string(): success, "4XX": refusal, "503": refusal },
    });
    let bodies = &mut schemas.bodies;
    let schema = operation.body.as_ref().map(|body| match body {
        Body::Spec => of::<GivenSpec>(bodies),
        Body::Fork => of::<GivenFork>(bodies),
        Body::Budget => of::<GivenBudget>(bodies),
        Body::Confirmation => of::<GivenConfirmation>(bodies),
        Body::Configuration => of::<GivenConfiguration>(bodies),
        Body::Note => of::<GivenNote>(bodies),
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

/// The content of an answer by media type.
fn content(answer: &Answer, schemas: &mut SchemaGenerator) -> Option<Value> {
    match answer {
        Answer::Json(schema) => Some(json!({ "application/json": { "schema": schema(schemas) } })),
        Answer::Export => Some(json!({
            "application/json": { "schema": of::<Report>(schemas) },
            "text/csv": { "schema": { "type": "string" } },
            // OpenAPI gives bytes no schema.
            "application/vnd.apache.parquet": {},
        })),
        Answer::Events => Some(json!({
            "text/event-stream": {
                "schema": { "type": "string" },
                // The data of each event by its name: OpenAPI 3.1 has no field for it.
                "x-events": { "changed": of::<Changed>(schemas) },
            },
        })),
        Answer::Nothing => None,
    }
}

pub(crate) async fn serve() -> Json<Value> {
    Json(document())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_types_of_the_description_share_a_name() {
        let (_, mut schemas) = described();
        let bodies = schemas.bodies.take_definitions(true);
        let answers = schemas.answers.take_definitions(true);
        for (name, schema) in &bodies {
            let of_answer = answers.get(name).unwrap_or(schema);
            assert_eq!(schema, of_answer, "{name} of bodies and of answers");
        }
        for name in bodies.keys().chain(answers.keys()) {
            // The generator gives a second type of a name a number.
            assert!(!name.ends_with(|it: char| it.is_ascii_digit()), "{name}");
        }
    }

    #[test]
    fn every_success_with_json_has_a_schema() {
        let (paths, _) = described();
        let operations = paths
            .values()
            .flat_map(|it| it.as_object().unwrap().values());
        let mut with_schema = 0;
        for operation in operations {
            let responses = operation["responses"].as_object().unwrap();
            for (status, response) in responses {
                let contents = response["content"].as_object().into_iter().flatten();
                for (media, content) in contents.filter(|(media, _)| media.contains("json")) {
                    let schema = content["schema"].as_object();
                    let is_empty = schema.is_none_or(Map::is_empty);
                    assert!(!is_empty, "{} {status} {media}", operation["operationId"]);
                    with_schema += usize::from(status.starts_with('2'));
                }
            }
        }
        assert_eq!(
            with_schema,
            OPERATIONS.len() - 2,
            "all but delete and events"
        );
    }
}
