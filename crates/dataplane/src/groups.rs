//! Flow groups: the unit in which flows move between shards (IX, section 4.4).

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};

/// IX moves flows in at most 512 groups, the size of a network card's redirection table.
pub const GROUPS: usize = 512;

/// The group of a peer. Peers without an address (Unix sockets) are spread by `fallback`.
pub fn group_of(peer: Option<SocketAddr>, fallback: u32) -> u16 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut mix = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    match peer {
        Some(peer) => {
            match peer.ip() {
                IpAddr::V4(ip) => ip.octets().into_iter().for_each(&mut mix),
                IpAddr::V6(ip) => ip.octets().into_iter().for_each(&mut mix),
            }
            peer.port().to_be_bytes().into_iter().for_each(&mut mix);
        }
        None => fallback.to_be_bytes().into_iter().for_each(&mut mix),
    }
    u16::try_from((hash ^ (hash >> 32)) % GROUPS as u64).unwrap_or(0)
}

/// Which shard owns each group: read by every shard for each new connection, written by the control
/// plane.
#[derive(Debug)]
pub struct GroupTable {
    owners: Box<[AtomicU8]>,
}

impl GroupTable {
    /// `groups` groups, one at least, spread over `shards` shards.
    pub fn spread(groups: usize, shards: u8) -> Self {
        let shards = usize::from(shards.max(1));
        let owner = |group| AtomicU8::new(u8::try_from(group % shards).unwrap_or(0));
        Self {
            owners: (0..groups.max(1)).map(owner).collect(),
        }
    }

    /// The shard that owns a group.
    pub fn owner(&self, group: u16) -> u8 {
        self.owners[usize::from(group) % self.owners.len()].load(Ordering::Acquire)
    }

    /// Gives a group to a shard.
    pub fn give(&self, group: u16, shard: u8) {
        self.owners[usize::from(group) % self.owners.len()].store(shard, Ordering::Release);
    }

    /// The moves that spread the groups evenly over the first `shards` shards, and move as few
    /// groups as possible: pairs of a group and its new owner.
    pub fn moves_to(&self, shards: u8) -> Vec<(u16, u8)> {
        let shards = shards.max(1);
        let share = self.owners.len().div_ceil(usize::from(shards));
        let mut counts = vec![0_usize; usize::from(shards)];
        let mut homeless = Vec::new();
        for group in 0..u16::try_from(self.owners.len()).unwrap_or(u16::MAX) {
            match counts.get_mut(usize::from(self.owner(group))) {
                Some(count) if *count < share => *count += 1,
                _ => homeless.push(group),
            }
        }
        let mut moves = Vec::new();
        for group in homeless {
            let least = (0..shards).min_by_key(|&shard| counts[usize::from(shard)]);
            if let Some(shard) = least {
                counts[usize::from(shard)] += 1;
                moves.push((group, shard));
            }
        }
        moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_spread_evenly_when_shards_come_and_go_and_few_move() {
        let table = GroupTable::spread(GROUPS, 1);
        for shards in [2_u8, 3, 4, 2, 1] {
            let moves = table.moves_to(shards);
            for &(group, shard) in &moves {
                table.give(group, shard);
            }
            let mut counts = vec![0; usize::from(shards)];
            for group in 0..512 {
                counts[usize::from(table.owner(group))] += 1;
            }
            let most = counts.iter().max().unwrap();
            assert!(*most <= GROUPS.div_ceil(usize::from(shards)), "{counts:?}");
            assert!(moves.len() <= GROUPS / 2 + 1, "{}", moves.len());
            assert!(table.moves_to(shards).is_empty());
        }
    }

    #[test]
    fn a_queue_for_each_shard_goes_to_that_shard_and_back() {
        let table = GroupTable::spread(2, 1);
        assert_eq!(table.moves_to(2), [(1, 1)]);
        table.give(1, 1);
        assert_eq!(table.moves_to(1), [(1, 0)]);
    }

    #[test]
    fn peers_fall_into_all_groups() {
        let groups: std::collections::HashSet<u16> = (1024..20_000)
            .map(|port| group_of(Some(SocketAddr::from(([10, 0, 0, 1], port))), 0))
            .collect();
        assert_eq!(groups.len(), GROUPS);
    }
}
