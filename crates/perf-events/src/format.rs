//! The layout of a tracepoint's raw data, from its `format` file (Documentation/trace/events.rst,
//! section 4).

use crate::Error;

/// A field of a tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Where it begins in the raw data.
    pub offset: usize,
    /// How many bytes it has.
    pub size: usize,
}

impl Field {
    /// The field as an unsigned number of up to eight bytes; `None` beyond the data's end.
    #[must_use]
    pub fn unsigned(&self, raw: &[u8]) -> Option<u64> {
        let bytes = raw.get(self.offset..self.offset.checked_add(self.size)?)?;
        let mut number = [0; 8];
        number.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(number))
    }

    /// The field as text, up to its first zero byte.
    #[must_use]
    pub fn text<'a>(&self, raw: &'a [u8]) -> Option<std::borrow::Cow<'a, str>> {
        let bytes = raw.get(self.offset..self.offset.checked_add(self.size)?)?;
        let end = bytes
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(&bytes[..end]))
    }
}

/// The layout of a tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracepointFormat {
    /// Its name.
    pub name: String,
    /// Its number, which is also the first two bytes of its raw data.
    pub id: u16,
    fields: Vec<(String, Field)>,
}

impl TracepointFormat {
    /// Reads a `format` file.
    ///
    /// ```
    /// let text = "name: sched_switch\nID: 316\nformat:\n\tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n";
    /// let format = perf_events::TracepointFormat::parse(text).unwrap();
    /// assert_eq!(format.id, 316);
    /// assert_eq!(format.field("prev_pid").unwrap().offset, 24);
    /// ```
    ///
    /// # Errors
    /// [`Error::Format`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        let after = |key: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(key))
                .map(str::trim)
        };
        let name = after("name:").unwrap_or_default().to_owned();
        let error = |reason: &str| Error::Format {
            name: name.clone(),
            reason: reason.to_owned(),
        };
        let id = after("ID:")
            .and_then(|id| id.parse().ok())
            .ok_or_else(|| error("it has no ID of two bytes"))?;
        let mut fields = Vec::new();
        for line in text.lines() {
            let Some(line) = line.trim().strip_prefix("field:") else {
                continue;
            };
            let mut parts = line.split(';').map(str::trim);
            let declaration = parts.next().unwrap_or_default();
            let mut number = |key: &str| {
                parts
                    .next()
                    .and_then(|part| part.strip_prefix(key))
                    .and_then(|number| number.parse().ok())
                    .ok_or_else(|| error(&format!("{declaration:?} has no {key}")))
            };
            let (offset, size) = (number("offset:")?, number("size:")?);
            let word = declaration.rsplit([' ', '*']).next().unwrap_or_default();
            let word = word.split('[').next().unwrap_or_default();
            fields.push((word.to_owned(), Field { offset, size }));
        }
        Ok(Self { name, id, fields })
    }

    /// A field by name.
    ///
    /// # Errors
    /// [`Error::Format`] where this kernel's tracepoint does not have it.
    pub fn field(&self, name: &str) -> Result<Field, Error> {
        self.fields
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, field)| *field)
            .ok_or_else(|| Error::Format {
                name: self.name.clone(),
                reason: format!("it has no field {name}"),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::SWITCH;

    #[test]
    fn fields_are_found_and_read() {
        let format = TracepointFormat::parse(SWITCH).unwrap();
        assert_eq!((format.name.as_str(), format.id), ("sched_switch", 316));
        let mut raw = vec![0; 40];
        raw[8..13].copy_from_slice(b"java\0");
        raw[24] = 7;
        assert_eq!(format.field("prev_pid").unwrap().unsigned(&raw), Some(7));
        assert_eq!(
            format.field("prev_comm").unwrap().text(&raw).unwrap(),
            "java"
        );
        assert_eq!(
            format.field("prev_state").unwrap().unsigned(&raw[..39]),
            None
        );
        assert!(
            format
                .field("next_pid")
                .unwrap_err()
                .to_string()
                .contains("next_pid")
        );
    }

    #[test]
    fn what_is_no_format_is_an_error() {
        assert!(TracepointFormat::parse("").is_err());
        assert!(TracepointFormat::parse("ID: x\n").is_err());
        assert!(TracepointFormat::parse("ID: 1\n\tfield:int a;\toffset:x;\tsize:4;\n").is_err());
    }
}
