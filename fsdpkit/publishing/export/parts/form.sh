# ---- What the form says --------------------------------------------------------------------------
# Everything below is the template's own script, made by the renderer that `fsdpkit submit` uses. In
# place of values it holds variables; here each is checked, and none is used before.
refuse() {    # which field, what is wrong, what is allowed
    printf 'fsdpkit: the form: %s: %s; allowed: %s\n' "$1" "$2" "$3" >&2
    exit 65
}
check() {    # variable, field, what is allowed, most characters, pattern
    local LC_ALL=C value=${!1-}
    [[ -n $value ]] || refuse "$2" "is empty" "$3"
    (( ${#value} <= $4 )) || refuse "$2" "has ${#value} bytes" "$3, at most $4 characters"
    [[ $value != *[![:print:]]* ]] ||
        refuse "$2" "is $(printf '%q' "${value:0:60}")" "$3, in printable ASCII"
    [[ $value =~ ^($5)$ ]] || refuse "$2" "is $(printf '%q' "${value:0:60}")" "$3"
}
