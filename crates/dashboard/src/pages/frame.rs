//! What all pages have: a template, and its reader.

use askama::Template;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};

use crate::access::Visitor;
use crate::reply::Refusal;
use crate::role::Role;

pub(super) fn page(template: &impl Template) -> Response {
    match template.render() {
        Ok(text) => Html(text).into_response(),
        Err(error) => Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the page could not be made: {error}"),
        )
        .into_response(),
    }
}

/// What every page shows of its reader.
#[derive(Clone, Debug, Default)]
pub(super) struct Reader {
    pub(super) csrf: String,
    pub(super) name: String,
    pub(super) may_sign_out: bool,
    pub(super) may_write: bool,
}

impl From<&Visitor> for Reader {
    fn from(visitor: &Visitor) -> Self {
        Self {
            csrf: visitor.csrf.clone(),
            name: visitor.name.clone(),
            may_sign_out: visitor.may_sign_out,
            may_write: visitor.role == Role::Write,
        }
    }
}

/// A page, or why there is none.
pub(super) fn answer(made: Result<Response, Refusal>) -> Response {
    made.unwrap_or_else(IntoResponse::into_response)
}
