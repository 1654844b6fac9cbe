case $FSDPKIT_FORM_RUN_DIR:$FSDPKIT_FORM_SCRIPT in
    *,* | *:*:*) refuse Directory "is $PWD, which a container cannot bind" 'no comma, no colon' ;;
esac
export FSDPKIT_FORM_BIND_RUN=--bind=$FSDPKIT_FORM_RUN_DIR FSDPKIT_FORM_BIND_SCRIPT=--bind=${FSDPKIT_FORM_SCRIPT%/*}
