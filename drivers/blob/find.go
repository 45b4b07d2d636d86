package blob

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"
)

// This file finds one name in a bucket without a listing of its directory.

// find finds a key, and whether there is a directory of its name; a stub is a directory. It lists the keys that
// begin with key: two of them, and one of those in the directory if that does not follow from the first two. If
// the store does not list in key order, or may not, and has not shown the name so, it lists all names of the
// directory that begin with the name.
// Some stores, such as directory buckets of Amazon, list whole directories only: there, find lists one
// key of the directory, and requests the first byte of the object.
func (b *Bucket) find(ctx context.Context, key string) (file item, isFile, isDir bool, err error) {
	if b.odd.slashed.Load() {
		return b.findWithSlash(ctx, key)
	}
	file, isFile, isDir, err = b.findByPrefix(ctx, key)
	if !isRefusedListing(err) {
		return file, isFile, isDir, err
	}
	file, isFile, isDir, slashErr := b.findWithSlash(ctx, key)
	if slashErr != nil {
		return item{}, false, false, err
	}
	b.note(&b.odd.slashed, "only prefixes that end in \"/\" can be listed; a name that is looked up by itself takes a request for its first byte, or those of listing its directory")
	return file, isFile, isDir, nil
}

// isRefusedListing reports whether a store has understood and refused a listing request, for another
// reason than the permissions.
func isRefusedListing(err error) bool {
	e, ok := errors.AsType[*storeError](err)
	return ok && e.errno == syscall.EIO && !e.retryable && e.status/100 != 2 && e.status != 0
}

func (b *Bucket) findByPrefix(ctx context.Context, key string) (file item, isFile, isDir bool, err error) {
	p, err := b.page(ctx, key, "/", "", 2, readRetries)
	if err != nil {
		return item{}, false, false, err
	}
	if file, isFile, isDir = namesOf(p.items, key); isDir || p.next == "" {
		return file, isFile, isDir, nil
	}
	// In key order, the key is the first one, and a directory of its name is before this one:
	passed := p.items[len(p.items)-1].key > key+"/"
	unsorted := b.odd.unsorted.Load()
	if !unsorted && (!passed || !b.promisesOrder()) {
		if isDir, err = b.hasDirectory(ctx, key); err != nil {
			return item{}, false, false, err
		}
		unsorted = isDir && passed || !isDir && !isFile && !b.promisesOrder() && b.mayRead(ctx, key)
	}
	if !unsorted {
		return file, isFile, isDir, nil
	}
	err = b.eachPage(ctx, key, pageSize, func(items []item, _ bool) (bool, error) {
		f, hasFile, hasDir := namesOf(items, key)
		if hasFile {
			file, isFile = f, true
		}
		isDir = isDir || hasDir
		return !isDir, nil
	})
	if err == nil && (isFile || isDir) && !b.odd.unsorted.Load() {
		err = b.checkOrder(ctx, key)
	}
	return file, isFile, isDir, err
}

// promisesOrder reports whether the vendor promises to list in key order: Amazon does not for directory buckets,
// and others who speak its protocol may not.
func (b *Bucket) promisesOrder() bool {
	l := b.location
	return l.Scheme != "s3" || l.isAmazon() && !strings.HasSuffix(l.Bucket, "--x-s3")
}

// mayRead reports whether there may be an object with a key. It requests the first byte.
func (b *Bucket) mayRead(ctx context.Context, key string) bool {
	_, _, status, _ := (&object{bucket: b, key: key}).describe(ctx)
	return status != http.StatusNotFound
}

// checkOrder records that the store does not list in key order if neither a key nor its directory, one of which
// is listed, is among the first keys that begin with it. It may be new.
func (b *Bucket) checkOrder(ctx context.Context, key string) error {
	p, err := b.page(ctx, key, "/", "", 2, readRetries)
	if err == nil && p.next != "" {
		_, isFile, isDir := namesOf(p.items, key)
		b.noteOrder(isFile || isDir)
	}
	return err
}

// hasDirectory reports whether there are keys in the directory of the name of a key.
func (b *Bucket) hasDirectory(ctx context.Context, key string) (bool, error) {
	p, err := b.page(ctx, key+"/", "/", "", 1, readRetries)
	return len(p.items) > 0, err
}

// findWithSlash is find in a store that lists whole directories only.
func (b *Bucket) findWithSlash(ctx context.Context, key string) (file item, isFile, isDir bool, err error) {
	if isDir, err = b.hasDirectory(ctx, key); isDir || err != nil {
		return item{}, false, isDir, err
	}
	r, size, status, err := (&object{bucket: b, key: key}).describe(ctx)
	switch {
	case status == http.StatusNotFound:
		return item{}, false, false, nil
	case err == nil && size >= 0 && r.version != "" && r.modified != 0 && !b.odd.otherETags.Load() && !b.odd.otherTimes.Load():
		return item{key: key, size: size, mtime: time.Unix(r.modified, 0), version: r.version}, true, false, nil
	}
	// An empty object has no first byte, and some stores describe objects otherwise in responses.
	file, isFile, err = b.findInDirectory(ctx, key)
	return file, isFile, false, err
}

// findInDirectory finds a key in the listing of its directory.
func (b *Bucket) findInDirectory(ctx context.Context, key string) (file item, isFile bool, err error) {
	err = b.eachPage(ctx, key[:strings.LastIndexByte(key, '/')+1], pageSize, func(items []item, _ bool) (bool, error) {
		file, isFile = findKey(items, key)
		return !isFile, nil
	})
	return file, isFile, err
}

// findListed finds a key in a listing.
func (b *Bucket) findListed(ctx context.Context, key string) (item, bool, error) {
	if !b.odd.slashed.Load() {
		if i, ok, _, err := b.findByPrefix(ctx, key); !isRefusedListing(err) {
			return i, ok, err
		}
	}
	return b.findInDirectory(ctx, key)
}

// namesOf returns the file with the name of a key, and whether there is a directory of that name.
func namesOf(items []item, key string) (file item, isFile, isDir bool) {
	if file, isFile = findKey(items, key); isFile && file.stub {
		isFile, isDir = false, true
	}
	return file, isFile, isDir || slices.ContainsFunc(items, func(i item) bool { return strings.HasPrefix(i.key, key+"/") })
}

// findKey returns the item with a key.
func findKey(items []item, key string) (item, bool) {
	for _, i := range items {
		if i.key == key {
			return i, true
		}
	}
	return item{}, false
}
