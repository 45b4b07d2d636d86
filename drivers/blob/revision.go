package blob

import (
	"context"
	"crypto/md5"
	"fmt"
	"hash"
	"hash/fnv"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A revision is what a store says about the version of an object: in a listing, or in the header of a
// response. A field that the store does not send is zero, and equals any other.
type revision struct {
	version  string // ETag or generation
	modified int64  // Last-Modified, in seconds since 1970: responses have whole seconds
}

// revisionOf returns the revision in the header of a response of S3 or Azure.
func revisionOf(h http.Header) revision {
	r := revision{version: etagVersion(h.Get("ETag"))}
	if t, err := http.ParseTime(h.Get("Last-Modified")); err == nil {
		r.modified = t.Unix()
	}
	return r
}

func (r revision) String() string {
	return fmt.Sprintf("ETag %q of %s", unquotedETag(r.version), time.Unix(r.modified, 0).UTC().Format(time.DateTime))
}

func (r revision) sameVersion(s revision) bool {
	return r.version == "" || s.version == "" || strongETag(r.version) == strongETag(s.version)
}

func (r revision) sameTime(s revision) bool {
	return r.modified == 0 || s.modified == 0 || r.modified == s.modified
}

// strongETag returns a version without the prefix of a weak ETag. A proxy that compresses makes ETags
// weak.
func strongETag(version string) string {
	if weak, ok := strings.CutPrefix(version, "W/"); ok {
		return etagVersion(weak)
	}
	return version
}

// Stores that speak the protocol of S3 do not all keep its promises: an ETag may be the same for all
// objects, listings may have other ETags or other times than responses, may not be in key order, may have
// keys that are not encoded as they say, and may be of whole directories only.
// oddities is what a bucket has shown since it was opened.
type oddities struct {
	md5        atomic.Int32 // whether ETags are MD5 sums
	repeated   atomic.Bool  // one ETag was seen with two sizes
	otherETags atomic.Bool  // responses have other ETags than listings
	otherTimes atomic.Bool  // responses have other times than listings
	unsorted   atomic.Bool  // listings are not in key order
	slashed    atomic.Bool  // only prefixes that end in "/" can be listed
	misencoded atomic.Bool  // listings have other keys than they say

	mu       sync.Mutex // guards the following
	texts    []string
	sizes    [256]taggedSize   // of objects that were listed, by a hash of the ETag
	answered map[string]answer // by key
}

// Whether ETags are MD5 sums, as they are in Amazon's store for an object that was written in one part
// and is not encrypted with a key of the user.
const (
	md5Unknown = iota
	md5Shown
	md5Refuted
)

// A taggedSize is the size of an object that was listed with an ETag.
type taggedSize struct {
	version string
	size    int64
}

// An answer is the revision that responses have for one version of an object, if that is not the
// revision that was listed.
type answer struct {
	version  string // as listed
	mtime    time.Time
	response revision
}

// isFor reports whether a is for this version of an object.
func (a answer) isFor(o *object) bool {
	return a.version == o.info.Version && a.mtime.Equal(o.info.Mtime)
}

// maxAnswers bounds oddities.answered.
const maxAnswers = 1 << 16

// note records an oddity, and logs it the first time.
func (b *Bucket) note(flag *atomic.Bool, format string, args ...any) {
	if flag.Swap(true) {
		return
	}
	text := fmt.Sprintf(format, args...)
	b.log.Warn("the object store deviates from its protocol", "problem", text)
	b.odd.mu.Lock()
	defer b.odd.mu.Unlock()
	b.odd.texts = append(b.odd.texts, text)
}

// notes returns the oddities, a sentence for each.
func (o *oddities) notes() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.texts)
}

// examine finds objects of a listing that have one ETag and different sizes, and archived ones.
func (b *Bucket) examine(p page) {
	if p.misencoded {
		b.note(&b.odd.misencoded, "listings say that their keys are encoded as in URLs, and they are not, or not as those of Amazon; the keys were found by requests")
	}
	for _, i := range p.items {
		if i.archived {
			b.refused.archives.Store(true)
		}
		if !i.dir && i.version != "" && !b.odd.repeated.Load() && b.odd.repeats(i) {
			b.note(&b.odd.repeated, "objects of different sizes have the same ETag, %s; size and time tell the versions of an object apart, and no two objects count as equal", unquotedETag(i.version))
		}
	}
}

// repeats reports whether an object of another size was listed with the same ETag, not long ago.
func (o *oddities) repeats(i item) bool {
	h := fnv.New32a()
	h.Write([]byte(i.version))
	o.mu.Lock()
	defer o.mu.Unlock()
	last := &o.sizes[h.Sum32()%uint32(len(o.sizes))]
	repeats := last.version == i.version && last.size != i.size
	*last = taggedSize{i.version, i.size}
	return repeats
}

// listed returns the revision with which the object was listed. A listing without times has the year 1.
func (o *object) listed() revision { return revision{o.info.Version, max(0, o.info.Mtime.Unix())} }

// expected returns the revision that responses for an object should have.
func (o *object) expected() revision {
	odd, listed := &o.bucket.odd, o.listed()
	odd.mu.Lock()
	a, ok := odd.answered[o.key]
	odd.mu.Unlock()
	if ok && a.isFor(o) {
		return a.response
	}
	if odd.otherETags.Load() {
		listed.version = ""
	}
	if odd.otherTimes.Load() {
		listed.modified = 0
	}
	return listed
}

// pin makes r the revision that responses for an object should have, unless another one was pinned
// before. It returns the one that is pinned.
func (o *object) pin(r revision) revision {
	odd := &o.bucket.odd
	odd.mu.Lock()
	defer odd.mu.Unlock()
	if a, ok := odd.answered[o.key]; ok && a.isFor(o) {
		return a.response
	}
	if odd.answered == nil {
		odd.answered = make(map[string]answer)
	}
	for key := range odd.answered {
		if len(odd.answered) < maxAnswers {
			break
		}
		delete(odd.answered, key) // any
	}
	odd.answered[o.key] = answer{o.info.Version, o.info.Mtime, r}
	return r
}

// check returns an error if a response has another revision than the expected one.
func (r revision) check(expected revision) error {
	switch {
	case !r.sameVersion(expected):
		return fmt.Errorf("%w: its version is %s, want %s", errRevision, unquotedETag(r.version), unquotedETag(expected.version))
	case !r.sameTime(expected):
		return fmt.Errorf("%w: it was modified at %v, want %v", errRevision, time.Unix(r.modified, 0).UTC(), time.Unix(expected.modified, 0).UTC())
	}
	return nil
}

// tellsMore reports whether r has a field that the expected revision lacks.
func (r revision) tellsMore(expected revision) bool {
	return expected.version == "" && r.version != "" || expected.modified == 0 && r.modified != 0
}

// settled is how long ago an object must have been written, so that a listing and a response with the
// same time are of the same version.
const settled = 5 * time.Second

// reconcile finds out why a store refuses a version that was listed, or sends another one. It returns
// true if the object has not changed: it is still listed so, and the store describes objects otherwise
// in responses. Either the ETag or the time of a response must be that of the listing.
func (o *object) reconcile(ctx context.Context) bool {
	b, odd, listed := o.bucket, &o.bucket.odd, o.listed()
	if o.expected() != listed || time.Since(o.info.Mtime)+b.net.clock.offset() < settled {
		return false
	}
	i, ok, err := b.findListed(ctx, o.key)
	if err != nil || !ok || !b.file(i).SameVersion(o.info) {
		return false
	}
	r, size, _, err := o.describe(ctx)
	if err != nil || size != o.info.Size || r.version == "" || r.modified == 0 {
		return false
	}
	switch sameETag, sameTime := r.sameVersion(listed), r.sameTime(listed); {
	case sameETag && sameTime: // it was refused for another reason
		return false
	case sameTime:
		b.note(&odd.otherETags, "the ETags in responses are not those in listings (%s and %s for %s); size and time tell the versions of an object apart", unquotedETag(r.version), unquotedETag(listed.version), o.name)
	case sameETag && listed.version != "" && !odd.repeated.Load():
		b.note(&odd.otherTimes, "the times in responses are not those in listings (%v and %v for %s); ETags tell the versions of an object apart", time.Unix(r.modified, 0).UTC(), time.Unix(listed.modified, 0).UTC(), o.name)
	default:
		b.log.Warn("the ETag and the time of an object in responses are not those in listings: it cannot be read", "key", o.key, "response", r, "listing", listed)
		return false
	}
	return o.pin(r) == r
}

// describe requests the first byte of an object, whatever its version, and returns its revision and size,
// and the status of the response.
func (o *object) describe(ctx context.Context) (r revision, size int64, status int, err error) {
	b := o.bucket
	ctx, watchdog, cancel := withWatchdog(ctx, b.stallTimeout)
	defer cancel()
	ctx, t := withTrace(ctx, get, watchdog)
	body, err := b.vendor.read(ctx, o.key, "", 0, 1)
	if err = watchdog.disarm(err); err != nil {
		return r, 0, t.status, err
	}
	body.Close()
	_, size, ok := contentRange(t.header.Get("Content-Range"))
	if !ok {
		size = t.length
	}
	return b.vendor.revision(t.header), size, t.status, nil
}

// A summer is a vendor that has checksums of objects.
type summer interface {
	// checksum requests the checksum of the content of one version of an object, with its
	// algorithm. It is "" if the store has none.
	checksum(ctx context.Context, key, version string) (string, error)
}

// partsETag is the form of the ETag of an object of S3 that was written in several parts.
var partsETag = regexp.MustCompile(`^[0-9a-f]{32}-[0-9]+$`)

func isMD5(version string) bool { return len(version) == 1+md5.Size && version[0] == 0 }

// HaveSameContent implements drivers.Comparer. Two objects of S3 with equal ETags have the same content
// if the store has shown that ETags are MD5 sums, or if the objects have equal checksums, too. The ETags
// of Azure, and the generations of Google Cloud Storage, identify the content of one object only.
func (b *Bucket) HaveSameContent(ctx context.Context, names [2]string, infos [2]drivers.Info) bool {
	s, ok := b.vendor.(summer)
	x, y := infos[0], infos[1]
	if !ok || !x.IsRegular() || !y.IsRegular() || x.Size != y.Size || x.Version != y.Version || b.odd.repeated.Load() {
		return false
	}
	switch {
	case isMD5(x.Version) && b.odd.md5.Load() == md5Shown:
		return true
	case !isMD5(x.Version) && !partsETag.MatchString(x.Version):
		return false
	}
	var sums [2]string
	for i, name := range names {
		ctx, watchdog, cancel := withWatchdog(ctx, b.stallTimeout)
		ctx, _ = withTrace(ctx, other, watchdog)
		sum, err := s.checksum(ctx, b.location.Prefix+name, infos[i].Version)
		err = watchdog.disarm(err)
		cancel()
		if err != nil || sum == "" {
			return false
		}
		sums[i] = sum
	}
	return sums[0] == sums[1]
}

// A wholeSum compares the MD5 sum of an object that is read whole with its ETag.
type wholeSum struct {
	hash.Hash
	odd  *oddities
	want string
}

// newWholeSum returns nil if there is nothing to find out.
func (o *object) newWholeSum() *wholeSum {
	odd := &o.bucket.odd
	if _, ok := o.bucket.vendor.(summer); !ok || !isMD5(o.info.Version) || odd.md5.Load() != md5Unknown {
		return nil
	}
	return &wholeSum{md5.New(), odd, o.info.Version[1:]}
}

func (s *wholeSum) end() {
	found := int32(md5Refuted)
	if string(s.Sum(nil)) == s.want {
		found = md5Shown
	}
	s.odd.md5.CompareAndSwap(md5Unknown, found)
}
