//! Configurations as points of the unit cube, for the model, and back.
//!
//! Ordered parameters become one coordinate in [0, 1] (after the logarithm, on a log scale);
//! categorical ones a coordinate that holds the number of the level and is compared for equality
//! alone. A parameter with special values gets a second, categorical coordinate: 0 for "ordinary",
//! k for its k-th special value, while its first coordinate then stands in the middle. Columns are
//! sorted by the parameters' names, so that their order in the specification changes nothing.

use crate::space::coordinate::{Coordinate, MIDDLE};
use crate::space::parameter::{Kind, Parameter, PriorGuess, STEP_TOLERANCE};
use crate::space::value::{Configuration, Value, cell, round_to_i64};

/// Where the ordered coordinate stands while a special value is set.
const SPECIAL_COORDINATE: f64 = 0.5;
/// The share of a uniform draw that each special value gets, at most half in all: a value that is
/// named apart deserves more tries than one point of a long range. A choice of this crate, not from
/// a source.
const SPECIAL_SHARE: f64 = 0.15;
/// Steps of [`Column::step_by`] that a continuum has.
pub(crate) const CONTINUUM_LEVELS: u64 = 1000;

#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    kind: Kind,
    special: Vec<Value>,
    pub(crate) prior: Option<PriorGuess>,
    /// The coordinate of the ordinary value.
    pub(crate) axis: usize,
    /// The coordinate that tells special values apart.
    pub(crate) special_axis: Option<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct Encoding {
    columns: Vec<Column>,
    coordinates: Vec<Coordinate>,
    /// Whether a quadratic mean is expected along real numbers.
    pub(crate) quadratic: bool,
}

impl Encoding {
    pub(crate) fn new(parameters: &[Parameter]) -> Self {
        let mut sorted: Vec<&Parameter> = parameters.iter().collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        let mut coordinates = Vec::new();
        let columns = sorted
            .into_iter()
            .map(|parameter| {
                let axis = coordinates.len();
                coordinates.push(match &parameter.kind {
                    // However they are written. With special values there are more than two.
                    kind if kind.is_pair() && parameter.special.is_empty() => Coordinate::Binary,
                    kind if kind.is_pair() => Coordinate::Categorical,
                    Kind::Categorical { .. } | Kind::Bool => Coordinate::Categorical,
                    Kind::Ordinal { .. }
                    | Kind::Int { log: true, .. }
                    | Kind::Float { log: true, .. } => Coordinate::Ordered,
                    Kind::Int { .. } => Coordinate::Integer,
                    Kind::Float { .. } => Coordinate::Continuous,
                });
                let special_axis = (!parameter.special.is_empty()).then(|| {
                    // The first is for what is not special.
                    coordinates.push(Coordinate::Categorical);
                    axis + 1
                });
                Column {
                    name: parameter.name.clone(),
                    kind: parameter.kind.clone(),
                    special: parameter.special.clone(),
                    prior: parameter.prior.clone(),
                    axis,
                    special_axis,
                }
            })
            .collect();
        Encoding {
            columns,
            coordinates,
            quadratic: true,
        }
    }

    pub(crate) fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// What each coordinate stands for.
    pub(crate) fn coordinates(&self) -> &[Coordinate] {
        &self.coordinates
    }

    /// All ranges and orders at their middle, and the first of all levels.
    pub(crate) fn middle(&self) -> Vec<f64> {
        let at = |coordinate: &Coordinate| {
            if coordinate.is_categorical() {
                0.0
            } else {
                MIDDLE
            }
        };
        self.coordinates.iter().map(at).collect()
    }

    /// How many coordinates a point has.
    pub(crate) fn dimension(&self) -> usize {
        self.coordinates.len()
    }

    fn column(&self, name: &str) -> Option<&Column> {
        self.columns
            .binary_search_by(|column| column.name.as_str().cmp(name))
            .ok()
            .map(|index| &self.columns[index])
    }

    /// The point of a configuration that [`crate::Space::check`] accepts. Values between steps keep
    /// their place.
    pub(crate) fn encode(&self, configuration: &Configuration) -> Vec<f64> {
        let mut point = vec![0.0; self.dimension()];
        for column in &self.columns {
            if let Some(value) = configuration.get(&column.name) {
                column.write(value, &mut point);
            }
        }
        point
    }

    /// The configuration nearest to `point`, on the grid.
    pub(crate) fn decode(&self, point: &[f64]) -> Configuration {
        Configuration(
            self.columns
                .iter()
                .map(|column| (column.name.clone(), column.read(point)))
                .collect(),
        )
    }

    /// Moves `point` to the nearest point of the grid.
    pub(crate) fn snap(&self, point: &mut [f64]) {
        for column in &self.columns {
            column.write(&column.read(point), point);
        }
    }

    /// Puts the guesses of the priors in their places; `false` where there are none.
    pub(crate) fn write_guesses(&self, point: &mut [f64]) -> bool {
        let mut any = false;
        for column in &self.columns {
            if let Some(prior) = &column.prior {
                column.write(&prior.best_guess, point);
                any = true;
            }
        }
        any
    }

    /// The point of a uniform draw: one number in [0, 1) for each column.
    pub(crate) fn place(&self, unit: &[f64]) -> Vec<f64> {
        let mut point = vec![0.0; self.dimension()];
        for (column, unit) in self.columns.iter().zip(unit) {
            column.draw(*unit, &mut point);
        }
        point
    }

    pub(crate) fn cardinality(&self) -> Option<u64> {
        self.columns.iter().try_fold(1_u64, |product, column| {
            product.checked_mul(column.states()?)
        })
    }

    /// Every point of a finite space, in lexicographic order; the caller bounds the number with
    /// [`Encoding::cardinality`].
    pub(crate) fn all_points(&self) -> Vec<Vec<f64>> {
        let mut points = vec![vec![0.0; self.dimension()]];
        for column in &self.columns {
            let states = column.states().unwrap_or(0);
            let mut next = Vec::with_capacity(
                points
                    .len()
                    .saturating_mul(usize::try_from(states).unwrap_or(0)),
            );
            for point in points {
                for state in 0..states {
                    let mut copy = point.clone();
                    column.write_state(state, &mut copy);
                    next.push(copy);
                }
            }
            points = next;
        }
        points
    }

    pub(crate) fn can_snap(&self, name: &str, value: &Value) -> bool {
        self.column(name)
            .is_some_and(|column| column.can_snap(value))
    }

    /// The nearest value on the grid of the parameter `name`; the value itself where there is no
    /// such parameter.
    pub(crate) fn snap_value(&self, name: &str, value: &Value) -> Value {
        let Some(column) = self.column(name) else {
            return value.clone();
        };
        let special = column.special.iter().any(|special| special.means(value));
        if let (
            Kind::Float {
                low,
                high,
                step: None,
                ..
            },
            Some(number),
            false,
        ) = (&column.kind, value.as_f64(), special)
        {
            return Value::Float(number.clamp(*low, *high));
        }
        let mut point = vec![0.0; self.dimension()];
        column.write(value, &mut point);
        column.read(&point)
    }
}

impl Column {
    pub(crate) fn is_ordered(&self) -> bool {
        !matches!(self.kind, Kind::Categorical { .. } | Kind::Bool)
    }

    /// How many ordinary values there are; `None` for a continuum.
    pub(crate) fn levels(&self) -> Option<u64> {
        match &self.kind {
            Kind::Int {
                low, high, step, ..
            } => Some(high.abs_diff(*low) / step.unsigned_abs() + 1),
            Kind::Float {
                low,
                high,
                step: Some(step),
                ..
            } => {
                // A grid that reaches `high` up to rounding includes it.
                Some(
                    round_to_i64(((high - low) / step + STEP_TOLERANCE).floor())
                        .unsigned_abs()
                        .saturating_add(1),
                )
            }
            Kind::Float { .. } => None,
            Kind::Ordinal { values } | Kind::Categorical { values } => Some(values.len() as u64),
            Kind::Bool => Some(2),
        }
    }

    /// Its coordinates.
    pub(crate) fn axes(&self) -> impl Iterator<Item = usize> + use<> {
        [self.axis].into_iter().chain(self.special_axis)
    }

    pub(crate) fn specials(&self) -> usize {
        self.special.len()
    }

    pub(crate) fn states(&self) -> Option<u64> {
        self.levels()?.checked_add(self.special.len() as u64)
    }

    /// The value of the `level`-th grid point.
    fn level_value(&self, level: u64) -> Value {
        match &self.kind {
            Kind::Int { low, step, .. } => {
                Value::Int(low.wrapping_add_unsigned(level.wrapping_mul(step.unsigned_abs())))
            }
            Kind::Float {
                low, high, step, ..
            } => {
                let step = step.unwrap_or(0.0);
                Value::Float(decimal(low + step * level as f64, step).clamp(*low, *high))
            }
            Kind::Ordinal { values } | Kind::Categorical { values } => {
                let last = values.len() - 1;
                values[usize::try_from(level).map_or(last, |level| level.min(last))].clone()
            }
            Kind::Bool => Value::Bool(level > 0),
        }
    }

    /// Writes the `state`-th state: special values come first.
    pub(crate) fn write_state(&self, state: u64, point: &mut [f64]) {
        match usize::try_from(state)
            .ok()
            .and_then(|state| self.special.get(state))
        {
            Some(special) => self.write(special, point),
            None => self.write_level(state - self.special.len() as u64, point),
        }
    }

    /// Writes the `level`-th grid point; that of a list is not looked for in the list, which may be
    /// long.
    fn write_level(&self, level: u64, point: &mut [f64]) {
        let (Kind::Ordinal { values } | Kind::Categorical { values }) = &self.kind else {
            return self.write(&self.level_value(level), point);
        };
        if let Some(axis) = self.special_axis {
            point[axis] = 0.0;
        }
        point[self.axis] = self.place_in(values, level as f64);
    }

    /// The coordinate of the `level`-th of a list's values.
    fn place_in(&self, values: &[Value], level: f64) -> f64 {
        match self.kind {
            Kind::Ordinal { .. } => level / (values.len() - 1) as f64,
            _ => level,
        }
    }

    fn can_snap(&self, value: &Value) -> bool {
        if self.special.iter().any(|special| special.means(value)) {
            return true;
        }
        match &self.kind {
            Kind::Int { .. } | Kind::Float { .. } => {
                matches!(value, Value::Int(_) | Value::Float(_))
                    && value.as_f64().is_some_and(|value| !value.is_nan())
            }
            Kind::Ordinal { values } | Kind::Categorical { values } => {
                values.iter().any(|level| level.means(value))
            }
            Kind::Bool => matches!(value, Value::Bool(_)),
        }
    }

    /// Writes the coordinates of `value`; numbers outside the range count as its nearest end.
    pub(crate) fn write(&self, value: &Value, point: &mut [f64]) {
        if let Some(axis) = self.special_axis {
            if let Some(position) = self.special.iter().position(|special| special.means(value)) {
                point[axis] = (position + 1) as f64;
                point[self.axis] = if self.is_ordered() {
                    SPECIAL_COORDINATE
                } else {
                    0.0
                };
                return;
            }
            point[axis] = 0.0;
        }
        point[self.axis] = match &self.kind {
            Kind::Int { low, high, log, .. } => scale(
                value.as_f64().unwrap_or(0.0),
                *low as f64,
                *high as f64,
                *log,
            ),
            Kind::Float { low, high, log, .. } => {
                scale(value.as_f64().unwrap_or(0.0), *low, *high, *log)
            }
            Kind::Ordinal { values } | Kind::Categorical { values } => {
                let level = values.iter().position(|level| level.means(value));
                self.place_in(values, level.unwrap_or(0) as f64)
            }
            Kind::Bool => f64::from(u8::from(*value == Value::Bool(true))),
        };
    }

    /// The value nearest to the coordinates.
    pub(crate) fn read(&self, point: &[f64]) -> Value {
        if let Some(axis) = self.special_axis
            && let Some(special) = usize::try_from(round_to_i64(point[axis]) - 1)
                .ok()
                .and_then(|k| self.special.get(k))
        {
            return special.clone();
        }
        let unit = point[self.axis];
        match &self.kind {
            Kind::Int { low, high, log, .. } => {
                self.nearest_level(unscale(unit, *low as f64, *high as f64, *log), *low as f64)
            }
            Kind::Float {
                low,
                high,
                step,
                log,
            } => {
                let value = unscale(unit, *low, *high, *log);
                if step.is_some() {
                    self.nearest_level(value, *low)
                } else {
                    Value::Float(value.clamp(*low, *high))
                }
            }
            Kind::Ordinal { values } => {
                values[cell_of(unit * (values.len() - 1) as f64, values.len())].clone()
            }
            Kind::Categorical { values } => values[cell_of(unit, values.len())].clone(),
            Kind::Bool => Value::Bool(unit >= 0.5),
        }
    }

    fn nearest_level(&self, value: f64, low: f64) -> Value {
        let step = match &self.kind {
            Kind::Int { step, .. } => *step as f64,
            Kind::Float { step, .. } => step.unwrap_or(1.0),
            _ => 1.0,
        };
        let level = round_to_i64((value - low) / step).max(0).unsigned_abs();
        self.level_value(level.min(self.levels().unwrap_or(1) - 1))
    }

    /// Writes the value at the share `unit` of the parameter's values, special ones included.
    pub(crate) fn draw(&self, unit: f64, point: &mut [f64]) {
        let share = (SPECIAL_SHARE * self.special.len() as f64).min(0.5);
        if unit < share {
            let special = cell(unit / share, self.special.len());
            return self.write_state(special as u64, point);
        }
        if let Some(axis) = self.special_axis {
            point[axis] = 0.0;
        }
        let unit = (unit - share) / (1.0 - share);
        match (
            &self.kind,
            self.levels()
                .and_then(|levels| usize::try_from(levels).ok()),
        ) {
            (Kind::Int { log: true, .. } | Kind::Float { log: true, .. }, _) | (_, None) => {
                point[self.axis] = unit;
                self.write(&self.read(point), point);
            }
            (_, Some(levels)) => self.write_level(cell(unit, levels) as u64, point),
        }
    }

    /// Moves the coordinate `steps` grid points on, along a continuum as many of its
    /// [`CONTINUUM_LEVELS`]; `false` where that leaves the range, and where values have no order or
    /// the present one is special.
    pub(crate) fn step_by(&self, steps: i64, point: &mut [f64]) -> bool {
        if self.special_axis.is_some_and(|axis| point[axis] != 0.0) {
            return false;
        }
        let value = self.read(point);
        let level = match &self.kind {
            Kind::Int { low, step, .. } => {
                value.as_i64().unwrap_or(*low).abs_diff(*low) / step.unsigned_abs()
            }
            Kind::Float {
                low,
                step: Some(step),
                ..
            } => {
                let level = (value.as_f64().unwrap_or(*low) - low) / step;
                round_to_i64(level).max(0).unsigned_abs()
            }
            Kind::Ordinal { values } => {
                let level = values.iter().position(|level| *level == value);
                level.unwrap_or(0) as u64
            }
            Kind::Float { step: None, .. } => {
                let before = point[self.axis];
                let moved = before + steps as f64 / CONTINUUM_LEVELS as f64;
                point[self.axis] = moved.clamp(0.0, 1.0);
                return point[self.axis] != before;
            }
            Kind::Categorical { .. } | Kind::Bool => return false,
        };
        let moved = level
            .checked_add_signed(steps)
            .filter(|moved| self.levels().is_some_and(|levels| *moved < levels));
        if let Some(moved) = moved {
            self.write_level(moved, point);
        }
        moved.is_some()
    }
}

/// Whether two points are the same configuration: up to the last digits, which text formats may
/// lose.
pub(crate) fn same_point(a: &[f64], b: &[f64]) -> bool {
    a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-9)
}

/// Whether one of `points` is this one.
pub(crate) fn is_among(points: &[Vec<f64>], point: &[f64]) -> bool {
    points.iter().any(|other| same_point(other, point))
}

fn cell_of(level: f64, count: usize) -> usize {
    usize::try_from(round_to_i64(level))
        .unwrap_or(0)
        .min(count - 1)
}

fn scale(value: f64, low: f64, high: f64, log: bool) -> f64 {
    let value = value.clamp(low, high);
    if log {
        (value / low).ln() / (high / low).ln()
    } else {
        (value - low) / (high - low)
    }
}

fn unscale(unit: f64, low: f64, high: f64, log: bool) -> f64 {
    if log {
        low * (high / low).powf(unit)
    } else {
        low + (high - low) * unit
    }
}

/// A multiple of `step` as a person would write it: 0.1 + 3 · 0.05 is 0.25, not
/// 0.25000000000000006. As it is where that would move it.
fn decimal(value: f64, step: f64) -> f64 {
    let written = format!("{value:.11e}").parse().unwrap_or(value);
    if (written - value).abs() < 1e-6 * step {
        written
    } else {
        value
    }
}

#[cfg(test)]
mod tests;
