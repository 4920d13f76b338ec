//! The order in which the sides of a pair are measured.

/// The sides in the order in which pair `pair` measures them: A B, B A, A B, and so on. So a linear
/// drift favours no side over any two pairs.
///
/// ```
/// use paired_stats::abba;
///
/// assert_eq!([0, 1, 2].map(|pair| abba(pair, ["A", "B"]).concat()), ["AB", "BA", "AB"]);
/// ```
#[must_use]
pub fn abba<T, Sides: AsMut<[T]>>(pair: usize, mut sides: Sides) -> Sides {
    if !pair.is_multiple_of(2) {
        sides.as_mut().reverse();
    }
    sides
}
