//! What the address asks of the table.

use axum::http::StatusCode;

use crate::api::OUTCOMES;
use crate::reply::Refusal;
use crate::web::{encoded, one_of, pairs};

/// No experiment has more pages.
const PAGE_MAX: usize = 1 << 20;
/// No search text is longer.
const SEARCH_CHARS_MAX: usize = 200;

/// What the address asks of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Look {
    pub(super) page: usize,
    pub(super) sort: String,
    pub(super) is_descending: bool,
    pub(super) outcome: String,
    pub(super) search: String,
    /// Empty: as nobody chose.
    pub(super) columns: Vec<String>,
}

impl Look {
    /// # Errors
    /// A parameter is unknown, or has no such value.
    pub(crate) fn parse(query: &str) -> Result<Self, Refusal> {
        let wrong = |why: String| Refusal::new(StatusCode::BAD_REQUEST, why);
        let mut look = Self {
            page: 1,
            sort: "rank".into(),
            ..Self::default()
        };
        for (name, value) in pairs(query) {
            match name.as_str() {
                "page" => {
                    let page = value.parse::<usize>().ok();
                    let page = page.filter(|page| (1..=PAGE_MAX).contains(page));
                    look.page = page.ok_or_else(|| {
                        wrong(format!(
                            "page={value}: give a whole number from 1 to {PAGE_MAX}"
                        ))
                    })?;
                }
                // A field of a form that nobody filled in.
                "sort" | "column" if value.is_empty() => {}
                "sort" => {
                    let key = value.strip_prefix('-');
                    look.is_descending = key.is_some();
                    key.unwrap_or(&value).clone_into(&mut look.sort);
                }
                "outcome" => {
                    one_of("outcome", Some(&value), OUTCOMES)?;
                    look.outcome = value;
                }
                "search" => look.search = value.trim().chars().take(SEARCH_CHARS_MAX).collect(),
                "column" => look.columns.push(value),
                other => {
                    return Err(wrong(format!(
                        "unknown query parameter {other:?}; known: page, sort, outcome, search, column"
                    )));
                }
            }
        }
        Ok(look)
    }

    /// Best first, and everything.
    pub(super) fn is_plain(&self) -> bool {
        self.sort == "rank"
            && !self.is_descending
            && self.outcome.is_empty()
            && self.search.is_empty()
    }

    /// The address of another page, or of another order.
    pub(super) fn link(&self, page: usize, sort: &str) -> String {
        let mut parts = Vec::new();
        if page > 1 {
            parts.push(format!("page={page}"));
        }
        if sort != "rank" {
            parts.push(format!("sort={}", encoded(sort)));
        }
        for (name, value) in [("outcome", &self.outcome), ("search", &self.search)] {
            if !value.is_empty() {
                parts.push(format!("{name}={}", encoded(value)));
            }
        }
        let columns = self.columns.iter();
        parts.extend(columns.map(|key| format!("column={}", encoded(key))));
        format!("?{}", parts.join("&"))
    }

    pub(super) fn sort_text(&self) -> String {
        format!("{}{}", if self.is_descending { "-" } else { "" }, self.sort)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_asks_for_an_order_a_filter_and_columns() {
        let look = Look::parse(
            "page=2&sort=-p%3Ax&outcome=crashed&search=+pool%3D4+&column=rank&column=p%3Ax",
        )
        .unwrap();
        assert_eq!(
            (look.page, look.sort.as_str(), look.is_descending),
            (2, "p:x", true)
        );
        assert_eq!(
            (look.outcome.as_str(), look.search.as_str()),
            ("crashed", "pool=4")
        );
        let link = look.link(3, &look.sort_text());
        let again = Look::parse(link.trim_start_matches('?')).unwrap();
        assert_eq!(again, Look { page: 3, ..look });
        assert!(Look::parse("").unwrap().is_plain());
        for wrong in [
            "page=abc",
            "page=0",
            "page=-1",
            "page=1048577",
            "page=99999999999999999999",
            "outcome=good",
            "sorted=rank",
        ] {
            assert!(Look::parse(wrong).is_err(), "{wrong}");
        }
    }
}
