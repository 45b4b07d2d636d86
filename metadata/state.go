package metadata

import "github.com/milkweedfs/milkweed/tiers"

// The state of an entry is one word that changes atomically: the level of its best copy,
// and these bits above it.
//
// An entry without a copy has the level AtSource. The right to make or drop a copy belongs
// to one owner at a time:
//
//	Claim    AtSource, unclaimed   →  claimed
//	Retract  level l, unclaimed    →  AtSource, claimed, unverified
//	Publish  claimed               →  level l
//	Release  claimed               →  unclaimed
//	Demote   level l               →  AtSource, unverified
//
// A stale entry cannot be claimed or retracted.
const (
	levelMask  = 0xff
	claimed    = 0x100     // there is an owner
	stale      = 0x200     // the name has another entry now, or none
	unverified = 0x400     // see Unverified
	skipped    = 0x800     // no tier had room for the file
	used       = 0x1000    // see Use
	doubtful   = 0x2000    // see Doubtful
	noXattrs   = 0x4000    // the source has listed no extended attributes
	noACL      = 0x8000    // the source has no ACL of the file
	unknown    = 0x10000   // see Unknown
	permitted  = 0x20000   // see Permit; until the attributes change
	denied     = 0x40000   // see Permit; until the source has confirmed the attributes
	lost       = 0x80000   // see isLost; until the source has confirmed the attributes
	mismatched = 0x100000  // see Mismatch
	opened     = 0x200000  // see MarkOpened
	unsized    = 0x400000  // see Unsized
	full       = 0x800000  // see Full; until the source has confirmed the attributes
	wasEmpty   = 0x1000000 // the Unsized file was empty when it was last read; until the attributes change
	prefetched = 0x2000000 // see MarkPrefetched
)

// Level returns the level of the best copy of the file. It takes no lock.
func (e *Entry) Level() tiers.Level { return tiers.Level(e.state.Load() & levelMask) }

// Stale reports whether the entry's name has another version now, or none.
func (e *Entry) Stale() bool { return e.state.Load()&stale != 0 }

// Unknown reports whether a listing has returned the name but not the attributes. The entry has
// only a name and a type, which may be 0, and Lookup requests the attributes. Then the entry is no
// longer Unknown, or, if its type was another one, the name has another entry. The kernel must not
// get an Unknown entry as a node.
func (e *Entry) Unknown() bool { return e.state.Load()&unknown != 0 }

// Claimed reports whether the entry has an owner, which makes or drops a copy.
func (e *Entry) Claimed() bool { return e.state.Load()&claimed != 0 }

// Unverified reports whether a tier may hold a copy under CopyName that Level does not show: a
// copy of this version, or an outdated one. The owner of the entry examines the tiers before
// it makes a copy.
func (e *Entry) Unverified() bool { return e.state.Load()&unverified != 0 }

// Claim makes the caller the owner of an entry without a copy, and reports success. It fails
// if the entry has an owner or a copy, is stale, or cannot have copies. The owner ends the
// claim with Publish or Release.
func (e *Entry) Claim() bool {
	return e.Placeable() && e.change(func(s uint32) (uint32, bool) {
		return s | claimed, s&(levelMask|claimed|stale) == 0
	})
}

// Publish ends a claim: level l holds a complete copy. The entry is then not Unverified.
func (e *Entry) Publish(l tiers.Level) {
	e.change(func(s uint32) (uint32, bool) {
		return s&(stale|used|doubtful|noXattrs|noACL|permitted|denied|opened|prefetched) | uint32(l), true
	})
}

// Release ends a claim without a copy.
func (e *Entry) Release() { e.clearBits(claimed) }

// Demote sets the level from l to AtSource, because the copy on level l is gone or damaged,
// and makes the entry Unverified. Of several concurrent calls for one copy, one returns true.
// For a stale entry all return false: the name of the copy belongs to the new version.
func (e *Entry) Demote(l tiers.Level) bool {
	var wasStale bool
	demoted := e.change(func(s uint32) (uint32, bool) {
		wasStale = s&stale != 0
		return s&^levelMask | unverified, tiers.Level(s&levelMask) == l
	})
	return demoted && !wasStale
}

// Retract begins to drop the copy on level l while other goroutines may open the file. In one
// step it sets the level to AtSource, makes the caller the owner, and makes the entry
// Unverified. It reports success; it fails if l is not the level, or the entry has an owner
// or is stale. The caller then removes the copy from its tier, calls Verified if that
// succeeded, and Release. Until then the file is read from the source, and no other
// goroutine can publish a copy or account for the loss of this one.
func (e *Entry) Retract(l tiers.Level) bool {
	return l != tiers.AtSource && e.change(func(s uint32) (uint32, bool) {
		return s&^levelMask | claimed | unverified, tiers.Level(s&levelMask) == l && s&(claimed|stale) == 0
	})
}

// Doubtful reports whether the content of the file may differ from what was read of it before,
// although its version is the same.
func (e *Entry) Doubtful() bool { return e.state.Load()&doubtful != 0 }

// ResolveDoubt ends the state Doubtful, and reports whether the entry was in it. The caller opens
// the file again.
func (e *Entry) ResolveDoubt() bool {
	return e.Doubtful() && e.state.And(^uint32(doubtful))&doubtful != 0
}

// Verified ends the state Unverified. The caller has examined every tier, or has removed the
// copy that made the entry Unverified.
func (e *Entry) Verified() { e.clearBits(unverified) }

// Skip records that no tier has room for the file, and reports whether that is the first
// time since the last Publish.
func (e *Entry) Skip() bool { return e.state.Or(skipped)&skipped == 0 }

// Mismatch records that the source does not have the file of the entry that its manifest describes, and
// reports whether that is the first time since the last Publish.
func (e *Entry) Mismatch() bool { return e.state.Or(mismatched)&mismatched == 0 }

// Use records that the kernel has requested something of the entry just now: Sweep revalidates
// such files first.
func (e *Entry) Use() {
	if e.state.Load()&used == 0 { // readers of one file do not write to it all the time
		e.setBits(used)
	}
}

// takeUsed reports whether Use was called since the last call of takeUsed.
func (e *Entry) takeUsed() bool {
	return e.state.Load()&used != 0 && e.state.And(^uint32(used))&used != 0
}

// MarkOpened records that a reader has opened the file, and reports whether that is the first time. The
// version that replaces the entry inherits that, but not one that is found after the entry was removed.
func (e *Entry) MarkOpened() (first bool) {
	return !e.WasOpened() && e.state.Or(opened)&opened == 0 // as in Use
}

// WasOpened reports whether MarkOpened was called.
func (e *Entry) WasOpened() bool { return e.state.Load()&opened != 0 }

// MarkPrefetched records that the file, or a piece of it, was copied ahead of readers.
func (e *Entry) MarkPrefetched() { e.setBits(prefetched) }

// WasPrefetched reports whether MarkPrefetched was called.
func (e *Entry) WasPrefetched() bool { return e.state.Load()&prefetched != 0 }

func (e *Entry) setBits(bits uint32)   { e.state.Or(bits) }
func (e *Entry) clearBits(bits uint32) { e.state.And(^bits) }

// change replaces the state s by the first result of f, unless the second is false. It
// reports whether the state was replaced. f may be called several times.
func (e *Entry) change(f func(s uint32) (uint32, bool)) bool {
	for {
		s := e.state.Load()
		next, ok := f(s)
		if !ok {
			return false
		}
		if e.state.CompareAndSwap(s, next) {
			return true
		}
	}
}
