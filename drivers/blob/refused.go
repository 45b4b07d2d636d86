package blob

import (
	"context"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// This file keeps requests for objects from a store that has just refused them, because they are archived
// or access is denied: each open, each reader and each copy of a file would send one.

// How long the refusal of one version of an object is remembered. To restore an archived object takes
// minutes or hours. Bucket.Retry makes the next open send a request.
var (
	archivedTTL = 5 * time.Minute
	deniedTTL   = 10 * time.Second
)

// maxRefused bounds refusedObjects.byKey.
const maxRefused = 1 << 16

// refusedObjects are the objects that the store refused when they were last requested. The methods may
// be called concurrently.
type refusedObjects struct {
	any      atomic.Bool // byKey is not empty
	archives atomic.Bool // the bucket has archived objects

	mu       sync.Mutex // guards the following
	byKey    map[string]*refusedObject
	archived int64 // of byKey
}

// A refusedObject is the error of one version of an object.
type refusedObject struct {
	version string
	err     *storeError
	until   time.Time // when the next request for it may be sent
}

// isRefusal reports whether e concerns one object.
func (e *storeError) isRefusal() bool {
	return e.errno == syscall.EACCES && !e.isOfSignature() && !e.reported
}

// ttl returns how long a refusal is remembered.
func (e *storeError) ttl() time.Duration {
	if e.archived {
		return archivedTTL
	}
	return deniedTTL
}

// get returns the error of a refused object, nil if a request may be sent. The caller of the first get after
// the time of the refusal sends it; known is true for that caller.
func (r *refusedObjects) get(o *object) (err *storeError, known bool) {
	if !r.any.Load() {
		return nil, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	found := r.byKey[o.key]
	switch now := time.Now(); {
	case found == nil || found.version != o.info.Version:
		return nil, false
	case now.Before(found.until):
		return found.err, true
	default:
		found.until = now.Add(found.err.ttl())
		return nil, true
	}
}

// add remembers that the store has refused an object, and reports whether it is the first one of its kind.
func (r *refusedObjects) add(o *object, err *storeError) (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first = len(r.byKey) == int(r.archived); err.archived {
		first = r.archived == 0
		r.archives.Store(true)
	}
	r.removeLocked(o.key)
	for key := range r.byKey {
		if len(r.byKey) < maxRefused {
			break
		}
		r.removeLocked(key) // any
	}
	if err.archived {
		r.archived++
	}
	if r.byKey == nil {
		r.byKey = make(map[string]*refusedObject)
	}
	r.byKey[o.key] = &refusedObject{o.info.Version, err, time.Now().Add(err.ttl())}
	r.any.Store(true)
	return first
}

// remove forgets an object.
func (r *refusedObjects) remove(key string) {
	if !r.any.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeLocked(key)
}

// removeLocked is remove; r.mu must be held.
func (r *refusedObjects) removeLocked(key string) {
	found, ok := r.byKey[key]
	if !ok {
		return
	}
	if delete(r.byKey, key); found.err.archived {
		r.archived--
	}
	r.any.Store(len(r.byKey) > 0)
}

// expire lets the next get of an object send a request.
func (r *refusedObjects) expire(key string) {
	if !r.any.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if found := r.byKey[key]; found != nil {
		found.until = time.Time{}
	}
}

// Refused returns the error of the opens of a version of an object that the store has refused to read, or nil if
// the next open sends a request. The error has a Remedy. The version is that of an Info, or "" for any.
func (b *Bucket) Refused(name, version string) error {
	r := &b.refused
	if !r.any.Load() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	found := r.byKey[b.location.Prefix+name]
	if found == nil || version != "" && found.version != version || !time.Now().Before(found.until) {
		return nil
	}
	return found.err
}

// Retry makes the next open of each object that is named, or is below a directory that is named, send a
// request, also if the store has refused the object.
func (b *Bucket) Retry(names []string) {
	r := &b.refused
	if !r.any.Load() {
		return
	}
	named := make(map[string]bool, len(names))
	for _, name := range names {
		named[name] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, found := range r.byKey {
		name := strings.TrimPrefix(key, b.location.Prefix)
		for !named[name] && name != "." {
			name = path.Dir(name)
		}
		if named[name] {
			found.until = time.Time{}
		}
	}
}

// counts returns how many objects are archived, and how many are denied for another reason.
func (r *refusedObjects) counts() (archived, denied int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.archived, int64(len(r.byKey)) - r.archived
}

// settle records the result of a request for an object. It returns the error for the reader.
func (b *Bucket) settle(ctx context.Context, o *object, err *storeError) *storeError {
	switch { // after another error, the next request finds out
	case err != nil && err.isOfSignature():
		b.refused.expire(o.key)
		b.refuse(err) // before the requests that wait for this one are sent
		return err
	case err == nil || !err.isRefusal():
		b.refused.remove(o.key)
		return err
	}
	err = b.explain(ctx, err)
	err.reported = true
	if first := b.refused.add(o, err); first {
		b.log.Warn("the store refuses to read an object; others like it are only counted", "path", o.name, "err", err.text, "remedy", err.remedy)
	}
	return err
}

// checkRefused returns the error of an object that the store has refused. When the time of the refusal is
// over, it requests the first byte: an open must not succeed if the reads fail.
func (o *object) checkRefused(ctx context.Context) error {
	if err := o.bucket.admit(ctx); err != nil {
		return err
	}
	switch err, known := o.bucket.refused.get(o); {
	case err != nil:
		return err
	case !known:
		return nil
	}
	body, err := o.request(ctx, 0, 1)
	switch {
	case err == nil:
		return body.Close()
	case err.reported:
		return err
	}
	return nil // the first read finds out what it is
}
