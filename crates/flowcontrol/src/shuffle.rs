//! Shuffle sharding: each flow has a hand of queues, dealt by its hash. Two flows rarely have the same hand, so a flow
//! that floods its queues rarely blocks all queues of another.

/// The maximum number of hash bits that a hand may use.
const HASH_BITS_MAX: f64 = 60.0;
/// The maximum number of queues in a hand, limited by the size of the hash.
pub const HAND_MAX: usize = 16;

/// Deals hands of `hand` out of `deck` queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dealer {
    deck: usize,
    hand: usize,
}

impl Dealer {
    /// Creates a dealer, or returns `None` if a hash has too few bits for such hands.
    pub fn new(deck: usize, hand: usize) -> Option<Self> {
        let fits = hand >= 1 && hand <= deck && hand <= HAND_MAX && deck <= 1 << 26;
        (fits && ((deck as f64).log2() * hand as f64).ceil() <= HASH_BITS_MAX).then_some(Self { deck, hand })
    }

    /// Returns the distinct queues of a flow.
    pub fn deal(self, mut hash: u64) -> impl ExactSizeIterator<Item = usize> + Clone {
        let mut cards = [0usize; HAND_MAX];
        for i in 0..self.hand {
            let left = (self.deck - i) as u64;
            let mut card = (hash % left) as usize;
            hash /= left;
            // Converts the card's index among the remaining ones to its index in the deck: `cards[..i]` is sorted.
            let mut at = 0;
            while at < i && cards[at] <= card {
                card += 1;
                at += 1;
            }
            cards.copy_within(at..i, at + 1);
            cards[at] = card;
        }
        cards.into_iter().take(self.hand)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn hands_that_a_hash_can_choose() {
        for (deck, hand, good) in
            [(64, 8, true), (128, 6, true), (1, 1, true), (0, 0, false), (4, 5, false), (1 << 20, 4, false)]
        {
            assert_eq!(Dealer::new(deck, hand).is_some(), good, "{hand} of {deck}");
        }
    }

    #[test]
    fn all_hands_are_dealt_and_equally_often() {
        let dealer = Dealer::new(5, 3).unwrap();
        let mut hands: HashMap<Vec<usize>, usize> = HashMap::new();
        for hash in 0..600 {
            let hand: Vec<usize> = dealer.deal(hash).collect();
            assert!(hand.is_sorted_by(|a, b| a < b) && hand.iter().all(|q| *q < 5), "{hand:?}");
            *hands.entry(hand).or_default() += 1;
        }
        // There are 60 ordered hands, and each set has six orders.
        assert_eq!((hands.len(), hands.values().all(|n| *n == 60)), (10, true), "{hands:?}");
    }
}
