package blobtest

import (
	"cmp"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// A Fault is a failure of a request.
type Fault string

// The faults. A fault that does not apply to a request, such as a truncated body if
// there is no body, has no effect.
const (
	// Faults of the connection.

	Reset     Fault = "reset"             // reset before the response
	ResetBody Fault = "reset in the body" // reset after a part of the body
	Truncated Fault = "truncated body"    // closed normally after a part of the body

	// Error responses of the Proxy. Their text contains Message.

	Unavailable  Fault = "503"                  // without Retry-After
	RetryAfter   Fault = "503 with Retry-After" // see Plan.RetryAfter
	TooMany      Fault = "429"
	Forbidden    Fault = "403"
	NotFound     Fault = "404"
	Precondition Fault = "412"

	// Changes of the server's response.

	Late        Fault = "late"         // delayed by Plan.Lateness
	Slow        Fault = "slow body"    // sent at Plan.SlowRate
	ShortLength Fault = "short length" // Content-Length is about half of the length of the body
	StaleETag   Fault = "stale ETag"   // with the ETag and the generation of another version
)

// Message is part of the text of each error response of a Proxy.
const Message = "This fault was injected by the plan."

// errorResponses has the status and the vendors' error code of the faults that are
// error responses.
var errorResponses = map[Fault]struct {
	status int
	code   string
}{
	Unavailable:  {http.StatusServiceUnavailable, "SlowDown"},
	RetryAfter:   {http.StatusServiceUnavailable, "SlowDown"},
	TooMany:      {http.StatusTooManyRequests, "TooManyRequests"},
	Forbidden:    {http.StatusForbidden, "AccessDenied"},
	NotFound:     {http.StatusNotFound, "NoSuchKey"},
	Precondition: {http.StatusPreconditionFailed, "PreconditionFailed"},
}

// A Plan describes the delays and faults that a Proxy adds to requests. The zero Plan
// adds none.
type Plan struct {
	// For all requests.

	Latency  time.Duration // delay before a request is forwarded
	Rate     int64         // limit of all bodies together, in bytes per second; 0: none
	ConnRate int64         // limit of the bodies on one connection, in bytes per second; 0: none

	// For the requests that Match selects. With the same Seed and the same order of
	// requests, the faults are the same.

	Seed   uint64
	Match  func(*http.Request) bool // nil selects all requests
	Jitter time.Duration            // upper bound of an additional random delay
	Faults map[Fault]float64        // probability of each fault; the sum is at most 1

	// Parameters of the faults.

	RetryAfter time.Duration // for RetryAfter; rounded down to seconds, 0 is one second
	Lateness   time.Duration // for Late
	SlowRate   int64         // for Slow: bytes per second
}

// A plan is a Plan in use.
type plan struct {
	Plan
	faults  []Fault       // the keys of Plan.Faults, sorted
	matched atomic.Uint64 // requests that Match has selected so far
}

func newPlan(p Plan) *plan {
	var sum float64
	for fault, chance := range p.Faults {
		if chance < 0 {
			panic(fmt.Sprintf("blobtest: the probability of %s is %v", fault, chance))
		}
		sum += chance
	}
	if sum > 1+1e-9 {
		panic(fmt.Sprintf("blobtest: the sum of the probabilities of all faults is %v", sum))
	}
	p.Faults = maps.Clone(p.Faults)
	return &plan{Plan: p, faults: slices.Sorted(maps.Keys(p.Faults))}
}

// An outcome is what a plan does to one request.
type outcome struct {
	fault   Fault         // "": none
	latency time.Duration // before the request is forwarded
	where   float64       // position of the fault in the body, from 0 to 1
}

// decide returns the outcome of a request.
func (p *plan) decide(r *http.Request) outcome {
	o := outcome{latency: p.Latency}
	if p.Match != nil && !p.Match(r) {
		return o
	}
	random := rand.New(rand.NewPCG(p.Seed, p.matched.Add(1)))
	sample := random.Float64()
	o.latency += time.Duration(random.Float64() * float64(p.Jitter))
	o.where = random.Float64()
	for _, fault := range p.faults {
		if sample -= p.Faults[fault]; sample < 0 {
			o.fault = fault
			break
		}
	}
	if o.fault == Late {
		o.latency += p.Lateness
	}
	return o
}

// A RequestKind is a class of requests.
type RequestKind int

// The kinds of requests.
const (
	Other RequestKind = iota
	Get               // content of an object, or a range of it
	List              // a page of keys
	Head              // attributes of an object
)

// KindOf returns the kind of a request of any of the three protocols. A request for
// the attributes of one object is Head, whatever its method.
func KindOf(r *http.Request) RequestKind {
	query := r.URL.Query()
	switch {
	case r.Method == http.MethodHead:
		return Head
	case r.Method != http.MethodGet:
		return Other
	case query.Get("comp") == "list" || query.Has("list-type"):
		return List
	case query.Has("comp") || query.Has("restype"):
		return Other
	}
	if elems := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/storage/v1/"), "/"); elems[0] == "b" {
		return kindOfJSON(elems, query.Get("alt"))
	}
	if _, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); key != "" {
		return Get
	}
	return Other
}

// kindOfJSON is KindOf for a GET of Google's JSON API. Its paths are b/BUCKET/o and
// b/BUCKET/o/KEY.
func kindOfJSON(elems []string, alt string) RequestKind {
	switch {
	case len(elems) < 3 || elems[2] != "o":
		return Other
	case len(elems) == 3:
		return List
	case alt == "media":
		return Get
	}
	return Head
}

// ObjectGets matches the requests for the content of objects.
func ObjectGets(r *http.Request) bool { return KindOf(r) == Get }

// writeError writes the error response of a fault, in the protocol of the request.
func writeError(w http.ResponseWriter, r *http.Request, fault Fault, retryAfter time.Duration) {
	e := errorResponses[fault]
	if fault == RetryAfter {
		w.Header().Set("Retry-After", strconv.Itoa(int(cmp.Or(retryAfter, time.Second).Seconds())))
	}
	body, contentType := errorXML(e.code), "application/xml"
	if strings.HasPrefix(r.URL.Path, "/storage/v1/") || strings.HasPrefix(r.URL.Path, "/b/") {
		body, contentType = errorJSON(e.status, e.code), "application/json"
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("x-ms-error-code", e.code)
	w.WriteHeader(e.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // an error means that the client has gone
	}
}

// errorXML returns an error response of S3, Azure, or Google's XML API.
func errorXML(code string) []byte {
	return must(xml.Marshal(struct {
		XMLName       xml.Name `xml:"Error"`
		Code, Message string
	}{Code: code, Message: Message}))
}

// errorJSON returns an error response of Google's JSON API.
func errorJSON(status int, reason string) []byte {
	type object = map[string]any
	return must(json.Marshal(object{"error": object{
		"code": status, "message": Message, "errors": []object{{"reason": reason, "message": Message}},
	}}))
}

// must returns data. It panics on an error, which these values cannot cause.
func must(data []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return data
}
